//! Requests a list page by page.

use std::sync::Arc;

use super::{
    error::WatchError,
    object::Object,
    scope::Scope,
    wire::{self, Page},
};
use crate::api::{Api, ApiError};

/// The pages of one list.
pub(super) struct Pages {
    api: Arc<Api>,
    scope: Scope,
    token: String,
}

/// Objects in a page, as client-go has it.
const LIMIT: &str = "500";

// === impl Pages ===

impl Pages {
    pub(super) fn new(api: Arc<Api>, scope: Scope) -> Self {
        Self { api, scope, token: String::new() }
    }

    /// Requests the next page, and returns it with its size in bytes. The last page has no `continue` token.
    pub(super) async fn next<T: Object>(&mut self) -> Result<(Page<T>, usize), WatchError> {
        let what = format!("list {}", self.scope.name);
        let path = self.scope.request(&[("limit", LIMIT), ("continue", &self.token)]);
        let json = self.api.get(&what, &path).await?;
        let page = wire::page(&json);
        let page: Page<T> = page.map_err(|error| ApiError::Invalid { what, why: error.to_string() })?;
        self.token.clone_from(&page.token);
        Ok((page, json.len()))
    }
}
