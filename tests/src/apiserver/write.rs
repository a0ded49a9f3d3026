//! Writes: defaulted metadata, validation, conflicts and finalizers.

use serde_json::{Map, Value, json};

use super::{
    meta,
    object::Key,
    resource::Endpoint,
    status::{About, Status},
    store::Store,
};

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything except the status, if that is a subresource.
    Main,
    /// Status and metadata.
    Status,
    /// Everything; only tests may write it, not HTTP clients.
    Whole,
}

/// The patch's content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchType {
    Merge,
    /// A merge patch that also merges conditions, by their type; of other lists, it replaces all.
    StrategicMerge,
    Json,
    /// Merged like a merge patch; creates a missing object.
    Apply,
}

/// Creates an object and returns it as the endpoint serves it.
///
/// # Errors
/// The API's status, if the object is invalid or already exists.
pub(super) fn create(
    store: &mut Store,
    endpoint: Endpoint,
    namespace: &str,
    value: Value,
    part: Part,
) -> Result<Value, Status> {
    let mut value = typed(endpoint, value)?;
    let metadata = meta::metadata(&mut value)?;
    let given = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = match (given("name"), given("generateName")) {
        (name, prefix) if name.is_empty() && !prefix.is_empty() => meta::generated_name(&prefix),
        (name, _) => name,
    };
    let uid = given("uid");
    if part != Part::Whole && !given("resourceVersion").is_empty() {
        return Err(Status::of_code(500, "resourceVersion should not be set on objects to be created"));
    }
    check_name(endpoint, &name)?;
    check_namespace(endpoint, metadata, namespace)?;
    let key = Key::new(endpoint.resource, namespace, &name);
    if store.get(&key).is_some() {
        return Err(Status::already_exists(&About(endpoint, &name)));
    }

    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        metadata.remove(field);
    }
    metadata.insert("name".to_owned(), name.into());
    if endpoint.resource.is_namespaced() {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    // A test's other objects may already refer to this UID.
    let uid = if part == Part::Whole && !uid.is_empty() { uid } else { meta::uid() };
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), meta::now().into());
    if meta::has_generation(endpoint.resource) {
        metadata.insert("generation".to_owned(), 1.into());
    }
    if let (Part::Main, super::Resource::Pods, Some(object)) =
        (part, endpoint.resource, value.as_object_mut())
    {
        object.insert("status".to_owned(), json!({ "phase": "Pending", "qosClass": "BestEffort" }));
    }
    Ok(endpoint.serving(store.put(key, value)))
}

/// Replaces an object.
///
/// # Errors
/// The API's status, if the object is missing, invalid or modified concurrently.
pub(super) fn update(
    store: &mut Store,
    endpoint: Endpoint,
    key: &Key,
    value: Value,
    part: Part,
) -> Result<Value, Status> {
    let mut value = typed(endpoint, value)?;
    let metadata = meta::metadata(&mut value)?;
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("name") != key.name {
        let (name, url) = (text("name"), &key.name);
        let why = format!("the name of the object ({name}) does not match the name on the URL ({url})");
        return Err(Status::bad_request(why));
    }
    if endpoint.resource.is_custom() && part != Part::Whole && text("resourceVersion").is_empty() {
        let why = "Invalid value: 0: must be specified for an update";
        let about = About(endpoint, &key.name);
        return Err(Status::invalid(Some(&about), "metadata.resourceVersion", "FieldValueInvalid", why));
    }
    let object = store.get(key).ok_or_else(|| Status::not_found(&About(endpoint, &key.name)))?;
    let old = object.value();
    replace(store, endpoint, key, old, value, part)
}

/// Patches an object.
///
/// # Errors
/// The API's status, if the object is missing or the patch is invalid.
pub(super) fn patch(
    store: &mut Store,
    endpoint: Endpoint,
    key: &Key,
    patch: Value,
    kind: PatchType,
    part: Part,
) -> Result<Value, Status> {
    let Some(object) = store.get(key) else {
        if kind == PatchType::Apply && part != Part::Status {
            return create(store, endpoint, &key.namespace, patch, part);
        }
        return Err(Status::not_found(&About(endpoint, &key.name)));
    };
    let old = object.value();
    let mut value = endpoint.serving(old.clone());
    if let Some(value) = value.as_object_mut() {
        endpoint.name_type(value);
    }
    if kind == PatchType::Json {
        let operations: json_patch::Patch =
            serde_json::from_value(patch).map_err(|error| Status::bad_request(error.to_string()))?;
        json_patch::patch(&mut value, &operations).map_err(|error| {
            let why = format!("the server rejected our request due to an error in our request: {error}");
            Status::of_code(422, why)
        })?;
    } else {
        let mut patch = patch;
        if kind == PatchType::StrategicMerge {
            merge_conditions(&value, &mut patch);
        }
        json_patch::merge(&mut value, &patch);
    }
    let value = typed(endpoint, value)?;
    replace(store, endpoint, key, old, value, part)
}

/// Deletes an object and returns its last state.
///
/// # Errors
/// The API's status, if the object is missing or a precondition fails.
pub(super) fn delete(
    store: &mut Store,
    endpoint: Endpoint,
    key: &Key,
    options: &Value,
) -> Result<Value, Status> {
    let about = About(endpoint, &key.name);
    let object = store.get(key).ok_or_else(|| Status::not_found(&about))?;
    let mut value = object.value();
    let metadata = meta::metadata(&mut value)?;
    for field in ["uid", "resourceVersion"] {
        let wanted = options.pointer("/preconditions").and_then(|preconditions| preconditions.get(field));
        if wanted.is_some_and(|wanted| metadata.get(field) != Some(wanted)) {
            return Err(Status::conflict(
                &about,
                &format!("Precondition failed: {field} in precondition differs"),
            ));
        }
    }
    let grace = options.get("gracePeriodSeconds").and_then(Value::as_u64);
    let grace = grace.filter(|_| endpoint.resource == super::Resource::Pods).unwrap_or(0);
    if grace == 0 && !meta::has_finalizers(metadata) {
        let last = store.remove(key).ok_or_else(|| Status::not_found(&about))?;
        return Ok(endpoint.serving(last.value()));
    }
    let current = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_u64);
    // A later delete can only shorten the grace period.
    if current.is_none_or(|current| grace < current) {
        metadata.insert("deletionTimestamp".to_owned(), meta::in_seconds(grace).into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        value = store.put(key.clone(), value);
    }
    Ok(endpoint.serving(value))
}

/// Binds a pod to the node that a Binding names.
///
/// # Errors
/// The API's status, if the pod does not exist or is already bound.
pub(super) fn bind(
    store: &mut Store,
    endpoint: Endpoint,
    key: &Key,
    binding: &Value,
) -> Result<Value, Status> {
    let about = About(endpoint, &key.name);
    let node = binding.pointer("/target/name").and_then(Value::as_str).unwrap_or_default();
    if node.is_empty() {
        return Err(Status::invalid(Some(&about), "target.name", "FieldValueRequired", "Required value"));
    }
    let object = store.get(key).ok_or_else(|| Status::not_found(&about))?;
    let current = object.value().pointer("/spec/nodeName").and_then(Value::as_str).map(str::to_owned);
    if let Some(current) = current.filter(|current| !current.is_empty()) {
        let why = format!("pod {} is already assigned to node {current:?}", key.name);
        return Err(Status::conflict(&about, &why));
    }
    let assigned = json!({ "spec": { "nodeName": node } });
    patch(store, endpoint, key, assigned, PatchType::Merge, Part::Main)?;
    Ok(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }))
}

// === helpers ===

/// Replaces the stored state; fields that clients cannot change keep their old value.
fn replace(
    store: &mut Store,
    endpoint: Endpoint,
    key: &Key,
    mut old: Value,
    mut new: Value,
    part: Part,
) -> Result<Value, Status> {
    let about = About(endpoint, &key.name);
    check_namespace(endpoint, meta::metadata(&mut new)?, &key.namespace)?;
    let kept = match part {
        Part::Main if endpoint.resource.has_status() => Some("status"),
        Part::Status => Some("spec"),
        Part::Main | Part::Whole => None,
    };
    if let (Some(field), Some(object)) = (kept, new.as_object_mut()) {
        keep(object, field, old.get(field));
    }
    let is_changed = |field: &str| old.get(field) != new.get(field);
    let grows = meta::has_generation(endpoint.resource)
        && (is_changed("spec") || (endpoint.resource.is_custom() && is_changed("status")));

    let metadata = meta::metadata(&mut new)?;
    let before = meta::metadata(&mut old)?;
    let differs = |field: &str| {
        let given = metadata.get(field).and_then(Value::as_str).unwrap_or_default();
        !given.is_empty() && before.get(field).and_then(Value::as_str) != Some(given)
    };
    if differs("resourceVersion") {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Status::conflict(&about, why));
    }
    if differs("uid") {
        return Err(Status::conflict(&about, "Precondition failed: UID in precondition differs"));
    }
    let fixed = ["name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation"];
    let deletion = ["deletionTimestamp", "deletionGracePeriodSeconds"];
    for field in fixed.iter().chain(deletion.iter().filter(|_| part != Part::Whole)) {
        keep(metadata, field, before.get(*field));
    }
    if grows && let Some(generation) = before.get("generation").and_then(Value::as_u64) {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }

    let is_deleted = metadata.contains_key("deletionTimestamp")
        && metadata.get("deletionGracePeriodSeconds").and_then(Value::as_u64).unwrap_or(0) == 0
        && !meta::has_finalizers(metadata);
    if is_deleted && meta::has_finalizers(before) {
        store.remove(key);
    } else if new != old {
        // A no-op write creates no version and no event.
        new = store.put(key.clone(), new);
    }
    Ok(endpoint.serving(new))
}

/// Completes the conditions of a patch with those of the object.
fn merge_conditions(object: &Value, patch: &mut Value) {
    let Some(changed) = patch.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else { return };
    let before = object.pointer("/status/conditions").and_then(Value::as_array);
    let mut merged = before.cloned().unwrap_or_default();
    for change in changed.drain(..) {
        match merged.iter_mut().find(|it| it.get("type") == change.get("type")) {
            Some(condition) => json_patch::merge(condition, &change),
            None => merged.push(change),
        }
    }
    *changed = merged;
}

fn keep(object: &mut Map<String, Value>, field: &str, value: Option<&Value>) {
    match value {
        Some(value) => object.insert(field.to_owned(), value.clone()),
        None => object.remove(field),
    };
}

/// A client's object in its stored form.
fn typed(endpoint: Endpoint, value: Value) -> Result<Value, Status> {
    let kind = endpoint.resource.kind();
    for (field, expected) in [("kind", kind), ("apiVersion", endpoint.api_version())] {
        let given = value.get(field).and_then(Value::as_str).unwrap_or_default();
        if !given.is_empty() && given != expected {
            let why =
                format!("the {field} in the data ({given}) does not match the expected one ({expected})");
            return Err(Status::bad_request(why));
        }
    }
    let mut value = endpoint.storing(value);
    let object = value.as_object_mut().ok_or_else(|| Status::bad_request(format!("not a {kind} object")))?;
    endpoint.resource.stored().name_type(object);
    Ok(value)
}

fn check_name(endpoint: Endpoint, name: &str) -> Result<(), Status> {
    let about = About(endpoint, name);
    if name.is_empty() {
        let why = "Required value: name or generateName is required";
        return Err(Status::invalid(Some(&about), "metadata.name", "FieldValueRequired", why));
    }
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    if name.len() > 253
        || !name.bytes().all(allowed)
        || name.starts_with(['-', '.'])
        || name.ends_with(['-', '.'])
    {
        let why = format!("Invalid value: {name:?}: a lowercase RFC 1123 subdomain");
        return Err(Status::invalid(Some(&about), "metadata.name", "FieldValueInvalid", &why));
    }
    Ok(())
}

fn check_namespace(endpoint: Endpoint, metadata: &Map<String, Value>, namespace: &str) -> Result<(), Status> {
    let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !given.is_empty() && endpoint.resource.is_namespaced() && given != namespace {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    Ok(())
}
