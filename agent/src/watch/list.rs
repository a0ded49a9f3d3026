//! Getting all objects, and finding what is gone by what is missing.

use std::collections::HashSet;

use super::{
    Sink,
    error::WatchError,
    objects::{Metadata, Object},
    source::{Source, Streams},
    wire::{self, Page},
};

/// The most objects in a page, as client-go has it.
const PAGE: usize = 500;

impl<T: Object, S: Sink<T>> Source<T, S> {
    /// Lists all objects, page by page.
    pub(super) async fn list(&mut self) -> Result<(), WatchError> {
        let what = format!("list {}", self.scope.name);
        self.begin_list();
        let mut token = String::new();
        loop {
            let limit = PAGE.to_string();
            let path = self.path(&[("limit", &limit), ("continue", &token)]);
            let page = self.api.get(&what, &path).await?;
            self.count_bytes(page.len());
            let page: Page<'_> = serde_json::from_slice(&page)
                .map_err(|error| WatchError::Answer { what: what.clone(), why: error.to_string() })?;
            for item in page.items.into_iter().flatten() {
                match serde_json::from_str::<T>(item.get()) {
                    Ok(object) => self.apply(object),
                    Err(error) => {
                        self.undecodable(&error);
                        self.is_listed(wire::metadata(item.get()));
                    }
                }
            }
            if page.metadata.r#continue.is_empty() {
                self.end_list(page.metadata.resource_version);
                return Ok(());
            }
            token = page.metadata.r#continue;
        }
    }

    /// Something is there that is not understood: so at least it is not gone.
    pub(super) fn is_listed(&mut self, metadata: Option<Metadata>) {
        if let (Some(listed), Some(metadata)) = (&mut self.state.listed, metadata) {
            listed.insert(metadata.key());
        }
    }

    pub(super) fn begin_list(&mut self) {
        self.state.listed = Some(HashSet::new());
    }

    /// All objects are there: what was known before and is not among them is gone, though no event told of it.
    pub(super) fn end_list(&mut self, position: String) {
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
        self.recovered();
    }

    /// Whether the server is still in the history that our position is of. One that was restored from an older copy
    /// says nothing to a watch from its future, for hours: no event, no bookmark, no error.
    pub(super) async fn check_history(&mut self) -> Result<(), WatchError> {
        let Some(position) = &self.state.position else { return Ok(()) };
        let what = format!("look at the history of {}", self.scope.name);
        let page = self.api.get(&what, &self.path(&[("limit", "1")])).await?;
        let page: Page<'_> = serde_json::from_slice(&page)
            .map_err(|error| WatchError::Answer { what, why: error.to_string() })?;
        let number = |text: &str| text.parse::<u64>().ok();
        if number(&page.metadata.resource_version) < number(position) {
            let server = page.metadata.resource_version;
            tracing::warn!(
                source = self.scope.name,
                position,
                server,
                "the API server's history is another one: listing"
            );
            self.state.position = None;
        }
        self.state.idle = 0;
        Ok(())
    }
}
