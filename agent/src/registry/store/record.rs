//! The files of the store: one record for each key, and the mark of completeness.

use std::{borrow::Cow, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    identity::Identity,
    layout::{self, MIGRATIONS, Migration},
};
use crate::{
    durable::{seal, unseal},
    registry::{attachment::Attachment, key::Key},
};

/// The content of a record's file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record<'a> {
    #[serde(flatten)]
    pub of: Cow<'a, Identity>,
    pub key: Cow<'a, Key>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub cooldown: Cow<'a, [Released]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Cow<'a, Attachment>>,
}

/// An address in cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    pub address: IpAddr,
    /// The time of the release: milliseconds by `CLOCK_BOOTTIME`.
    pub since_boot_ms: u64,
}

/// What is kept of a key: its attachment, and the addresses of earlier ones that are in cooldown. The file of
/// a key with neither is removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    pub attachment: Option<Attachment>,
    pub cooldown: Vec<Released>,
}

/// The content of the mark's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    #[serde(flatten)]
    pub of: Identity,
    /// Whether every attachment of the kernel has a record.
    pub complete: bool,
}

/// Why a file is not used as it is.
#[derive(Debug)]
pub(super) enum Unfit {
    Damaged(String),
    /// Intact, and of a layout that this agent does not know.
    Layout(u64),
}

/// The name of the mark's file. A record's name has two colons.
pub(super) const META: &str = "meta";
/// Bytes. A record has less than a kilobyte, and as much again for a VIF with some hundred routes.
pub(super) const MAX_BYTES: u64 = 1 << 20;
const RECORD_KIND: &str = "ferrule-attachment";
const META_KIND: &str = "ferrule-registry";

/// The name of a key's file. None of the three names can contain a colon or a slash, and together they have
/// at most 245 bytes.
pub(super) fn name(key: &Key) -> String {
    format!("{}:{}:{}", key.network, key.container_id, key.ifname)
}

/// The key of a file; `None` if no key has this name.
pub(super) fn key(file: &str) -> Option<Key> {
    Key::try_from(file.replace(':', "/")).ok().filter(|key| name(key) == file)
}

// === impl Released ===

impl Released {
    pub fn new(address: IpAddr, at: Duration) -> Self {
        Self { address, since_boot_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX) }
    }

    /// The time of the release, since boot.
    pub fn at(&self) -> Duration {
        Duration::from_millis(self.since_boot_ms)
    }
}

// === impl Record ===

impl<'a> Record<'a> {
    pub(super) fn new(own: &'a Identity, key: &'a Key, kept: &'a Kept) -> Self {
        Self {
            of: Cow::Borrowed(own),
            key: Cow::Borrowed(key),
            cooldown: Cow::Borrowed(&kept.cooldown),
            attachment: kept.attachment.as_ref().map(Cow::Borrowed),
        }
    }

    /// The content of the file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut json = serde_json::to_vec(self)?;
        json.push(b'\n');
        Ok(seal(RECORD_KIND, layout::newest(MIGRATIONS), &json))
    }
}

impl Record<'static> {
    /// Decodes the file of a key. Returns as well whether the file has an earlier layout.
    pub(super) fn decode(bytes: &[u8], key: &Key, migrations: &[Migration]) -> Result<(Self, bool), Unfit> {
        let file = unseal(RECORD_KIND, bytes).map_err(|why| Unfit::Damaged(why.to_owned()))?;
        let steps = layout::needed(file.layout, migrations).ok_or(Unfit::Layout(file.layout))?;
        let record = if steps.is_empty() {
            serde_json::from_slice(file.body)
        } else {
            serde_json::from_slice::<Map<String, Value>>(file.body).and_then(|mut fields| {
                steps.iter().for_each(|step| step(&mut fields));
                serde_json::from_value(Value::Object(fields))
            })
        };
        let record: Self = record.map_err(|error| Unfit::Damaged(error.to_string()))?;
        let other = record.attachment.as_ref().map(|it| &it.key).into_iter().chain([&*record.key]);
        if let Some(other) = other.into_iter().find(|other| *other != key) {
            return Err(Unfit::Damaged(format!("the record belongs to {other}")));
        }
        Ok((record, !steps.is_empty()))
    }

    pub(super) fn kept(self) -> Kept {
        Kept { attachment: self.attachment.map(Cow::into_owned), cooldown: self.cooldown.into_owned() }
    }
}

// === impl Meta ===

impl Meta {
    pub(super) fn new(own: &Identity, complete: bool) -> Self {
        Self { of: own.clone(), complete }
    }

    /// The content of the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { of: Identity { boot, netns }, complete } = self;
        let json = serde_json::json!({ "boot": boot, "netns": netns, "complete": complete });
        seal(META_KIND, layout::newest(MIGRATIONS), format!("{json}\n").as_bytes())
    }

    pub(super) fn decode(bytes: &[u8], migrations: &[Migration]) -> Result<Self, Unfit> {
        let file = unseal(META_KIND, bytes).map_err(|why| Unfit::Damaged(why.to_owned()))?;
        layout::needed(file.layout, migrations).ok_or(Unfit::Layout(file.layout))?;
        serde_json::from_slice(file.body).map_err(|error| Unfit::Damaged(error.to_string()))
    }
}
