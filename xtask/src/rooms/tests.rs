//! A small crate of three rooms, and what the check finds in it.

use super::*;

const TABLE: &str = "Text.\n\n```rooms\nlow:\nmiddle: low\nhigh: low middle\n```\n";

fn file(path: &str, text: &str) -> File {
    let module = path.trim_end_matches("/mod").split('/').map(str::to_owned).collect();
    File { path: PathBuf::from(format!("{path}.rs")), module, source: Source::parse(text).unwrap() }
}

fn check(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<File> = files.iter().map(|(path, text)| file(path, text)).collect();
    of_rooms(&Table::parse(TABLE).unwrap(), &files).into_iter().map(|Finding(text)| text).collect()
}

const MIDDLE: (&str, &str) = ("middle", "use crate::low::A;\n");
const HIGH: (&str, &str) = ("high", "use crate::{low::A, middle};\n");

#[test]
fn imports_that_the_table_allows_are_no_findings() {
    assert_eq!(check(&[("low", "use std::fs;\npub struct A;\n"), MIDDLE, HIGH]), [] as [&str; 0]);
}

#[test]
fn an_import_of_a_higher_room_is_found_in_use_paths_and_macros() {
    let found = ["low.rs:2: room `low` must not import room `high`"];
    assert_eq!(check(&[("low", "\nuse crate::{high as h};\n"), MIDDLE, HIGH]), found);
    assert_eq!(check(&[("low", "fn f() {\n    crate::high::g();\n}\n"), MIDDLE, HIGH]), found);
    assert_eq!(check(&[("low", "fn f() {\n    print!(\"\", crate::high::g());\n}\n"), MIDDLE, HIGH]), found);
    assert_eq!(check(&[("low", "struct A(\n    super::high::B,\n);\n"), MIDDLE, HIGH]), found);
}

#[test]
fn tests_may_import_every_room() {
    let text = "#[cfg(test)]\nmod tests {\n    use crate::high::B;\n}\n";
    assert_eq!(check(&[("low", text), MIDDLE, HIGH]), [] as [&str; 0]);
}

#[test]
fn rooms_and_arrows_that_table_and_code_do_not_share_are_found() {
    let found = check(&[("low", ""), ("middle", ""), HIGH, ("new", "")]);
    let expected = [
        "docs/architecture.md: room `new` is missing in the table",
        "docs/architecture.md: room `middle` may import `low`, and does not",
    ];
    assert_eq!(found, expected);
    let found = check(&[("low", ""), MIDDLE]);
    assert_eq!(found, ["docs/architecture.md: room `high` does not exist in agent/src"]);
}

#[test]
fn files_that_import_each_other_are_found_also_through_a_reexport() {
    let parent = ("high/mod", "mod a;\nmod b;\npub use a::A;\nuse crate::{low, middle};\n");
    let a = ("high/a", "use super::b::B;\npub struct A(B);\n");
    let b = ("high/b", "use super::A;\npub struct B;\n");
    let circle = ["agent/src: circle between files: high::a → high::b → high::a"];
    assert_eq!(check(&[("low", ""), MIDDLE, parent, a, b]), circle);
    let b = ("high/b", "pub struct B;\n");
    assert_eq!(check(&[("low", ""), MIDDLE, parent, a, b]), [] as [&str; 0]);
}

#[test]
fn a_parent_that_uses_a_child_that_uses_the_parent_is_a_circle() {
    let child = ("high/a", "use super::P;\npub struct A(P);\n");
    let parent = "mod a;\npub use a::A;\npub struct P;\nuse crate::{low, middle};\n";
    assert_eq!(check(&[("low", ""), MIDDLE, ("high/mod", parent), child]), [] as [&str; 0]);
    let user = format!("{parent}fn f() {{ A::new(); }}\n");
    let circle = ["agent/src: circle between files: high → high::a → high"];
    assert_eq!(check(&[("low", ""), MIDDLE, ("high/mod", &user), child]), circle);
}

#[test]
fn a_table_with_an_arrow_up_is_refused() {
    let error = Table::parse("```rooms\nlow: high\nhigh:\n```\n").unwrap_err().to_string();
    assert_eq!(error, "room `low` names `high`, which is not in a line above it");
    assert!(Table::parse("no table").is_err());
}

#[test]
fn circles_of_a_crate_without_rooms_are_found() {
    let files = [
        file("events", "use crate::policy;\n"),
        file("policy/mod", "mod case;\nuse crate::events;\n"),
        file("policy/case", "use super::MISSING;\n"),
    ];
    let found: Vec<_> =
        circles("crate/src", &files, |_| true).into_iter().map(|Finding(text)| text).collect();
    assert_eq!(found, ["crate/src: circle between files: events → policy → events"]);
}
