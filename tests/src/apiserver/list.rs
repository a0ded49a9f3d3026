//! Lists: whole or in pages, at the current or an older version.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    object::Key,
    params::{Match, Params, Version},
    resource::Endpoint,
    selector::Selector,
    status::Status,
    store::Store,
};

/// A continue token.
struct Token {
    /// None after the token's version was compacted: the list continues at the current version.
    version: Option<u64>,
    namespace: String,
    name: String,
}

/// Answers a list.
///
/// # Errors
/// The API's status, if the options are invalid or the version is unknown.
pub(super) fn list(
    store: &Store,
    endpoint: Endpoint,
    selector: &Selector,
    params: &Params,
) -> Result<Bytes, Status> {
    let wanted = params.version()?;
    let matching = params.version_match(true)?;
    let limit = params.number("limit")?.filter(|limit| *limit > 0);
    let current = store.version();

    let token = Token::parse(params.text("continue"))?;
    let (version, limit) = match (&token, wanted) {
        (Some(_), Version::At(_)) => {
            let why = "specifying resource version is not allowed when using continue";
            return Err(Status::bad_request(why));
        }
        (Some(token), _) => (token.version.unwrap_or(current), limit),
        (None, Version::Unset) => (current, limit),
        // A list that any cache may answer is not paged.
        (None, Version::Any) => (current, None),
        (None, Version::At(version)) if version > current => {
            return Err(Status::too_large_version(version, current));
        }
        (None, Version::At(version)) if is_exact(matching, limit) => (version, limit),
        (None, Version::At(_)) => (current, limit),
    };
    if version < store.compacted() {
        return Err(match token {
            Some(token) => Status::expired_token(Token { version: None, ..token }.text()),
            None => Status::expired("The resourceVersion for the provided list is too old."),
        });
    }

    let behind = token.map(|token| Key::new(endpoint.resource, &token.namespace, &token.name));
    let mut objects = store.at(version, endpoint.resource, behind.as_ref());
    objects.retain(|object| selector.matches(object));
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let rest = objects.len().saturating_sub(limit);
    objects.truncate(limit);

    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if let (Some(last), true, Some(metadata)) = (objects.last(), rest > 0, metadata.as_object_mut()) {
        let Key { namespace, name, .. } = last.key.clone();
        metadata
            .insert("continue".to_owned(), Token { version: Some(version), namespace, name }.text().into());
        if selector.is_plain() {
            metadata.insert("remainingItemCount".to_owned(), rest.into());
        }
    }
    let mut body = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
        endpoint.resource.kind(),
        endpoint.api_version()
    )
    .into_bytes();
    for (at, object) in objects.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        object.append_item(endpoint, &mut body);
    }
    body.extend_from_slice(b"]}\n");
    Ok(Bytes::from(body))
}

// === impl Token ===

impl Token {
    fn parse(text: &str) -> Result<Option<Self>, Status> {
        if text.is_empty() {
            return Ok(None);
        }
        let token = || -> Option<Self> {
            let value: Value = serde_json::from_slice(&unhex(text)?).ok()?;
            let text = |field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
            Some(Self { version: value.get("rv")?.as_u64(), namespace: text("ns")?, name: text("name")? })
        };
        token().map(Some).ok_or_else(|| Status::bad_request("continue key is not valid"))
    }

    /// Hex, so that clients treat the token as opaque.
    fn text(&self) -> String {
        let text = json!({ "rv": self.version, "ns": self.namespace, "name": self.name }).to_string();
        text.bytes().map(|byte| format!("{byte:02x}")).collect()
    }
}

// === helpers ===

/// With a limit, a version without `resourceVersionMatch` means `Exact`: the legacy behaviour.
fn is_exact(matching: Match, limit: Option<u64>) -> bool {
    matching == Match::Exact || (matching == Match::Unset && limit.is_some())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
