//! HTTP routing: from a request to its response.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody, combinators::BoxBody};
use hyper::body::{Body as _, Frame, Incoming};
use serde_json::Value;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

use super::{
    connections::Killer,
    control,
    core::Core,
    discovery,
    faults::{Refusal, lock},
    list, log,
    object::Key,
    params::Params,
    resource::{CLUSTER_POLICIES, Endpoint, Resource, version_of},
    reviews,
    selector::Selector,
    status::{About, Status},
    watch,
    write::{self, Part, PatchType},
};

/// Body limit of the real API server, in bytes.
const MAX_BODY: usize = 3 << 20;

type Body = BoxBody<Bytes, Infallible>;

/// The object or collection that a path names.
struct Target<'a> {
    endpoint: Endpoint,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    subresource: Option<&'a str>,
}

/// A successful response.
enum Answer {
    Json(StatusCode, Bytes),
    Lines(watch::Lines),
    Text(StatusCode, &'static str),
}

/// Answers one request.
pub(super) async fn serve(
    core: Arc<Core>,
    connection: Killer,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let at = core.log.now();
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map(|body| body.to_bytes());
    if let Some(name) = parts.uri.path().strip_prefix("/_test/") {
        return Ok(control_response(&core, &parts.method, name, &body.unwrap_or_default()));
    }
    let params = Params::parse(parts.uri.query().unwrap_or_default());
    let target = Target::parse(parts.uri.path());
    let resource = target.as_ref().map(|target| target.endpoint.resource);
    let refusal = core.faults.refusal_of(resource, params.flag("watch"));
    let response = match (refusal, body) {
        (Some(refusal), _) => refused(&refusal),
        (None, Err(_)) => failure(&Status::of_code(413, format!("the body is larger than {MAX_BODY} bytes"))),
        (None, Ok(body)) => match answer(&core, connection, &parts, target.as_ref(), &params, &body) {
            Ok(answer) => answer.into_response(),
            Err(status) => failure(&status),
        },
    };
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    let user_agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let bytes = core.log.note(log::Request {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: text(parts.uri.query()),
        user_agent: text(user_agent),
        status: response.status().as_u16(),
        bytes: 0,
        at,
    });
    Ok(response.map(|body| counted(core, bytes, body)))
}

fn answer(
    core: &Arc<Core>,
    connection: Killer,
    parts: &Parts,
    target: Option<&Target<'_>>,
    params: &Params,
    body: &[u8],
) -> Result<Answer, Status> {
    let path = parts.uri.path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Ok(Answer::Text(StatusCode::OK, "ok"));
    }
    let settings = core.settings();
    let token = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    if settings.tokens.as_ref().is_some_and(|tokens| !tokens.iter().any(|known| known == token)) {
        return Err(Status::unauthorized());
    }
    let is_served = |endpoint: Endpoint| match endpoint.resource {
        Resource::KuryrPorts => settings.kuryr,
        Resource::ClusterNetworkPolicies => settings.cluster_policies,
        _ => true,
    };
    let renamed = settings.cluster_policies_as.as_deref();
    if parts.method == Method::GET
        && let Some(about) = discovery::answer(path, renamed, is_served)
    {
        return Ok(Answer::json(StatusCode::OK, &about));
    }
    if parts.method == Method::POST
        && let Some(review) = reviews::answer(
            path,
            &serde_json::from_slice(body).unwrap_or_default(),
            settings.tokens.as_deref(),
        )
    {
        return Ok(Answer::json(StatusCode::CREATED, &review));
    }
    let is_renamed = |target: &&Target<'_>| {
        renamed.is_some() && target.endpoint.resource == Resource::ClusterNetworkPolicies
    };
    let known = renamed
        .map(|version| path.replace(&group_version(version), &group_version(version_of(CLUSTER_POLICIES))));
    let of_other_version = known.as_deref().filter(|known| *known != path).and_then(Target::parse);
    let target = target.filter(|target| !is_renamed(target)).or(of_other_version.as_ref());
    let Some(target) = target.filter(|target| is_served(target.endpoint)) else {
        return Ok(Answer::Text(StatusCode::NOT_FOUND, "404 page not found\n"));
    };
    let is_denied = |(resource, whose): &(Resource, Option<String>)| {
        *resource == target.endpoint.resource && whose.as_deref().is_none_or(|whose| whose == token)
    };
    if settings.denied.iter().any(is_denied) {
        let verb = target.verb(&parts.method, params);
        return Err(Status::forbidden(verb, target.endpoint, target.namespace));
    }
    match target.name {
        None => collection(core, connection, parts, target, params, body),
        Some(name) => item(core, parts, target, name, params, body),
    }
}

/// The beginning of a path of ClusterNetworkPolicies.
fn group_version(version: &str) -> String {
    format!("/apis/{CLUSTER_POLICIES}/{version}/")
}

fn collection(
    core: &Arc<Core>,
    connection: Killer,
    parts: &Parts,
    target: &Target<'_>,
    params: &Params,
    body: &[u8],
) -> Result<Answer, Status> {
    let endpoint = target.endpoint;
    match parts.method {
        Method::GET => {
            let (fields, labels) = (params.text("fieldSelector"), params.text("labelSelector"));
            let selector = Selector::parse(endpoint, target.namespace, fields, labels)?;
            if params.flag("watch") {
                watch::open(core, endpoint, selector, params, connection).map(Answer::Lines)
            } else {
                let body = list::list(&lock(&core.store), endpoint, &selector, params)?;
                Ok(Answer::Json(StatusCode::OK, body))
            }
        }
        Method::POST if target.namespace.is_some() || !endpoint.resource.is_namespaced() => {
            let namespace = target.namespace.unwrap_or_default();
            let value = parsed(body)?;
            let made = core.write(|store| write::create(store, endpoint, namespace, value, Part::Main))?;
            Ok(Answer::json(StatusCode::CREATED, &made))
        }
        _ => Err(Status::method_not_allowed()),
    }
}

fn item(
    core: &Core,
    parts: &Parts,
    target: &Target<'_>,
    name: &str,
    params: &Params,
    body: &[u8],
) -> Result<Answer, Status> {
    let endpoint = target.endpoint;
    let key = Key::new(endpoint.resource, target.namespace.unwrap_or_default(), name);
    let part = match target.subresource {
        None => Part::Main,
        Some("status") if endpoint.resource.has_status() => Part::Status,
        Some("binding") if endpoint.resource == Resource::Pods && parts.method == Method::POST => {
            let binding = parsed(body)?;
            let bound = core.write(|store| write::bind(store, endpoint, &key, &binding))?;
            return Ok(Answer::json(StatusCode::CREATED, &bound));
        }
        Some(_) => return Err(Status::of_code(404, "the server could not find the requested resource")),
    };
    let value = match parts.method {
        Method::GET => {
            let store = lock(&core.store);
            let object = store.get(&key).ok_or_else(|| Status::not_found(&About(endpoint, name)))?;
            return Ok(Answer::Json(StatusCode::OK, object.json(endpoint)));
        }
        Method::PUT => {
            let value = parsed(body)?;
            core.write(|store| write::update(store, endpoint, &key, value, part))?
        }
        Method::PATCH => {
            let kind = patch_type(parts)?;
            let value = parsed(body)?;
            core.write(|store| write::patch(store, endpoint, &key, value, kind, part))?
        }
        Method::DELETE if part == Part::Main => {
            let mut options = if body.is_empty() { serde_json::json!({}) } else { parsed(body)? };
            if let (Some(grace), Some(options)) =
                (params.number("gracePeriodSeconds")?, options.as_object_mut())
            {
                options.insert("gracePeriodSeconds".to_owned(), grace.into());
            }
            core.write(|store| write::delete(store, endpoint, &key, &options))?
        }
        _ => return Err(Status::method_not_allowed()),
    };
    Ok(Answer::json(StatusCode::OK, &value))
}

// === impl Target ===

impl<'a> Target<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let mut segments = path.trim_matches('/').split('/').peekable();
        let group = match segments.next()? {
            "api" => "",
            "apis" => segments.next()?,
            _ => return None,
        };
        let version = segments.next()?;
        let rest: Vec<&str> = segments.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, resource, rest @ ..] if *resource != "status" => {
                (Some(*namespace), [&[*resource], rest].concat())
            }
            rest => (None, rest.to_vec()),
        };
        let (resource, name, subresource) = match rest.as_slice() {
            [resource] => (*resource, None, None),
            [resource, name] => (*resource, Some(*name), None),
            [resource, name, subresource] => (*resource, Some(*name), Some(*subresource)),
            _ => return None,
        };
        let endpoint = Endpoint::find(group, version, resource)?;
        // Namespaced objects are served below their namespace only, cluster-scoped ones outside any.
        let fits = match endpoint.resource.is_namespaced() {
            true => namespace.is_some() || name.is_none(),
            false => namespace.is_none(),
        };
        fits.then_some(Self { endpoint, namespace, name, subresource })
    }

    fn verb(&self, method: &Method, params: &Params) -> &'static str {
        match *method {
            Method::GET if params.flag("watch") => "watch",
            Method::GET if self.name.is_none() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            _ => "delete",
        }
    }
}

// === impl Answer ===

impl Answer {
    fn json(status: StatusCode, value: &Value) -> Self {
        Self::Json(status, Bytes::from(value.to_string()))
    }

    fn into_response(self) -> Response<Body> {
        match self {
            Self::Json(status, json) => response(status, "application/json", Full::new(json).boxed()),
            Self::Text(status, text) => {
                let body = Full::new(Bytes::from_static(text.as_bytes())).boxed();
                response(status, "text/plain; charset=utf-8", body)
            }
            Self::Lines(lines) => {
                let frames = ReceiverStream::new(lines).map(|line| Ok(Frame::data(line)));
                response(StatusCode::OK, "application/json", StreamBody::new(frames).boxed())
            }
        }
    }
}

// === helpers ===

fn response(status: StatusCode, content: &'static str, body: Body) -> Response<Body> {
    let length = body.size_hint().exact();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(length) = length {
        // Counting bytes in transit hides the body's length from hyper.
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content));
    response
}

fn failure(status: &Status) -> Response<Body> {
    let mut response = Answer::json(status.http_status(), &status.to_value()).into_response();
    // Retry-After goes with the codes that announce a retry.
    if let (Some(seconds), true) =
        (status.retry_after_seconds(), status.code() == 429 || status.code() >= 500)
    {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let mut response = failure(&refusal.to_status());
    if refusal.plain_text {
        let text = "Too many requests, please try again later.\n";
        let retry_after = response.headers_mut().remove(header::RETRY_AFTER);
        response = Answer::Text(response.status(), text).into_response();
        response.headers_mut().extend(retry_after.map(|value| (header::RETRY_AFTER, value)));
    }
    response
}

fn control_response(core: &Arc<Core>, method: &Method, name: &str, body: &[u8]) -> Response<Body> {
    match control::over_http(core, method, name, body) {
        Ok(value) => Answer::json(StatusCode::OK, &value).into_response(),
        Err(status) => failure(&status),
    }
}

fn counted(core: Arc<Core>, bytes: Arc<AtomicU64>, body: Body) -> Body {
    body.map_frame(move |frame| {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        bytes.fetch_add(length, Ordering::Relaxed);
        core.log.count(length);
        frame
    })
    .boxed()
}

fn parsed(body: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("cannot read the body: {error}")))
}

fn patch_type(parts: &Parts) -> Result<PatchType, Status> {
    let content = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    match content.unwrap_or_default().split(';').next().unwrap_or_default().trim() {
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchType::StrategicMerge),
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/apply-patch+yaml" => Ok(PatchType::Apply),
        other => Err(Status::of_code(415, format!("a patch of an unknown type: {other:?}"))),
    }
}
