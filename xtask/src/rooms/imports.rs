//! The imports of one source file: `use` declarations, and paths in code and in the arguments of macros.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, File, ImplItemFn, Item, ItemMod, ItemUse, Macro, Meta, Path, UseTree, Visibility,
    visit::{self, Visit},
};

/// A module's path below the crate root: `["attach", "engine"]`.
pub(super) type Module = Vec<String>;

/// The paths that a file names, as written.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// All paths of two or more segments, in code.
    paths: Vec<Import>,
    /// The first segments of all paths in code.
    names: BTreeSet<String>,
    uses: Vec<Use>,
}

/// A path and the line that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

/// One name that a `use` declaration brings into scope.
#[derive(Debug)]
struct Use {
    import: Import,
    /// `None` for a glob.
    name: Option<String>,
    reexport: bool,
}

// === impl Source ===

impl Source {
    /// # Errors
    /// If the text is not Rust.
    pub(super) fn parse(text: &str) -> syn::Result<Self> {
        let file: File = syn::parse_str(text)?;
        let mut source = Self::default();
        source.visit_file(&file);
        Ok(source)
    }

    /// The imports from the agent's own modules, as paths from the crate root. A re-export counts only if the
    /// file uses the name itself.
    pub(super) fn imports(&self, known: &BTreeSet<&Module>, module: &Module) -> Vec<Import> {
        let is_import =
            |it: &&Use| !it.reexport || it.name.as_ref().is_some_and(|it| self.names.contains(it));
        let used = self.uses.iter().filter(is_import).map(|it| &it.import);
        let absolute = |import: &Import| {
            Some(Import { path: absolute(&import.path, known, module)?, line: import.line })
        };
        used.chain(&self.paths).filter_map(absolute).collect()
    }

    /// The path that a `use` declaration of this module gives a name to.
    pub(super) fn alias(
        &self,
        known: &BTreeSet<&Module>,
        module: &Module,
        name: &str,
    ) -> Option<Vec<String>> {
        let found = self.uses.iter().find(|it| it.name.as_deref() == Some(name))?;
        absolute(&found.import.path, known, module)
    }

    fn add(&mut self, path: Vec<String>, line: usize) {
        self.names.extend(path.first().cloned());
        if path.len() > 1 {
            self.paths.push(Import { path, line });
        }
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String], reexport: bool) {
        let mut path = before.to_vec();
        let (ident, name) = match tree {
            UseTree::Path(it) => {
                path.push(it.ident.to_string());
                return self.add_use(&it.tree, &path, reexport);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|it| self.add_use(it, before, reexport));
            }
            UseTree::Name(it) => (Some(&it.ident), Some(&it.ident)),
            UseTree::Rename(it) => (Some(&it.ident), Some(&it.rename)),
            _ => (None, None),
        };
        // `use a::{self}` names `a`.
        path.extend(ident.filter(|it| *it != "self" || before.is_empty()).map(ToString::to_string));
        let name = match name {
            Some(it) if it == "self" => before.last().cloned(),
            it => it.map(ToString::to_string),
        };
        let line = ident.map_or(0, |it| it.span().start().line);
        self.uses.push(Use { import: Import { path, line }, name, reexport });
    }

    /// Paths in the arguments of a macro, which are tokens without structure.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.add(std::mem::take(&mut path), line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.add(std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(path, line);
    }
}

impl Visit<'_> for Source {
    fn visit_item(&mut self, item: &Item) {
        let attributes: &[Attribute] = match item {
            Item::Const(it) => &it.attrs,
            Item::Fn(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            Item::Macro(it) => &it.attrs,
            Item::Mod(it) => &it.attrs,
            Item::Static(it) => &it.attrs,
            Item::Struct(it) => &it.attrs,
            Item::Use(it) => &it.attrs,
            _ => &[],
        };
        if !attributes.iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &ImplItemFn) {
        if !function.attrs.iter().any(is_test) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &ItemMod) {
        // Only the root of a file is a module here: the agent has no inline modules but for tests.
        visit::visit_item_mod(self, module);
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        self.add_use(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &Path) {
        let line = path.segments.first().map_or(0, |it| it.ident.span().start().line);
        self.add(path.segments.iter().map(|it| it.ident.to_string()).collect(), line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &Macro) {
        self.add_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &Attribute) {}

    fn visit_visibility(&mut self, _: &Visibility) {}
}

/// Whether an attribute is `#[cfg(test)]` or `#[test]`.
fn is_test(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    }
}

/// A path of `module` from the crate root; `None` if it leads to another crate or is a local name.
fn absolute(path: &[String], known: &BTreeSet<&Module>, module: &Module) -> Option<Vec<String>> {
    let mut at = module.clone();
    let mut rest = path;
    match path.split_first()? {
        (first, after) if first == "crate" => (at, rest) = (Vec::new(), after),
        (first, after) if first == "self" => rest = after,
        (first, _) if first == "super" => {
            while let Some((_, after)) = rest.split_first().filter(|(first, _)| *first == "super") {
                at.pop();
                rest = after;
            }
        }
        (first, _) => {
            // A child module, in scope by its name.
            at.push(first.clone());
            let is_child = known.contains(&at);
            at.pop();
            if !is_child {
                return None;
            }
        }
    }
    at.extend(rest.iter().cloned());
    Some(at)
}
