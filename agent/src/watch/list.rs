//! Getting all objects, and finding what is gone by what is missing.

use std::collections::HashSet;

use super::{
    Sink,
    object::{Object, ObjectMeta},
    source::{Source, Streams},
    wire::{self, Page},
};
use crate::api::ApiError;

/// The most objects in a page, as client-go has it.
const PAGE: usize = 500;

/// What a list has shown.
pub(super) struct Listed {
    pub position: String,
    /// The position at which what is newest in it changed.
    pub newest: Option<u64>,
    /// How many of the known objects were not in it.
    pub lost: usize,
}

impl<T: Object, S: Sink<T>> Source<T, S> {
    /// Lists all objects, page by page.
    pub(super) async fn list(&mut self) -> Result<Listed, ApiError> {
        let what = format!("list {}", self.scope.name);
        self.begin_list();
        let (mut token, mut newest) = (String::new(), None);
        loop {
            let limit = PAGE.to_string();
            let path = self.path(&[("limit", &limit), ("continue", &token)]);
            let page = self.api.get(&what, &path).await?;
            self.count_bytes(page.len());
            let page: Page<'_> = serde_json::from_slice(&page)
                .map_err(|error| ApiError::Answer { what: what.clone(), why: error.to_string() })?;
            for item in page.items.into_iter().flatten() {
                match wire::decode::<T>(item.get()) {
                    Ok((object, version)) => {
                        newest = newest.max(number(&version));
                        self.apply(object, version);
                    }
                    Err(error) => {
                        self.undecodable(&error);
                        let metadata = wire::metadata(item.get());
                        newest = newest.max(metadata.as_ref().and_then(|it| number(&it.resource_version)));
                        self.is_listed(metadata);
                    }
                }
            }
            if page.metadata.r#continue.is_empty() {
                let position = page.metadata.resource_version;
                let lost = self.end_list(position.clone());
                return Ok(Listed { position, newest, lost });
            }
            token = page.metadata.r#continue;
        }
    }

    /// Something is there that is not understood: so at least it is not gone.
    pub(super) fn is_listed(&mut self, metadata: Option<ObjectMeta>) {
        if let (Some(listed), Some(metadata)) = (&mut self.state.listed, metadata) {
            listed.insert(metadata.key());
        }
    }

    pub(super) fn begin_list(&mut self) {
        self.state.listed = Some(HashSet::new());
    }

    /// All objects are there: what was known before and is not among them is gone, though no event told of it. Says how
    /// many there are of these.
    pub(super) fn end_list(&mut self, position: String) -> usize {
        let listed = self.state.listed.take().unwrap_or_default();
        let mut lost: Vec<_> =
            self.state.known.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        lost.sort();
        for key in &lost {
            self.remove(key, None);
        }
        self.moved_to(position);
        self.state.keeper.listed();
        self.metrics.lists.get_or_create(&self.labels()).inc();
        self.state.doubtful = false;
        if self.state.streams_lists == Streams::NotNow {
            self.state.streams_lists = Streams::Perhaps;
        }
        tracing::info!(source = self.scope.name, objects = listed.len(), lost = lost.len(), "listed");
        self.synced();
        self.recovered_by_list();
        lost.len()
    }
}

/// A position as a number, to be compared with others.
pub(super) fn number(position: &str) -> Option<u64> {
    position.parse().ok()
}
