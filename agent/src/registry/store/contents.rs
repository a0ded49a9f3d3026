//! All records of a store: reading and writing them at once.

use std::{io, net::IpAddr, time::Duration};

use redb::{ReadTransaction, ReadableTable as _, TableError, WriteTransaction};

use super::{
    identity::{self, Identity},
    tables::{ATTACHMENTS, COOLDOWN, INCOMPLETE, LAYOUT, META},
};
use crate::registry::attachment::Attachment;

/// All records of a store.
#[derive(Debug, Default)]
pub struct Contents {
    pub attachments: Vec<Attachment>,
    /// Released addresses with the time of the release since boot, earliest first.
    pub cooldown: Vec<(IpAddr, Duration)>,
    /// One line for each attachment record that cannot be decoded.
    pub unreadable: Vec<String>,
    /// Attachments of the kernel may lack a record.
    pub is_incomplete: bool,
    /// The boot and namespace of the records; `None` if an early agent wrote the store, which did not record
    /// them.
    pub identity: Option<Identity>,
}

/// Reads a store of the newest layout.
pub(super) fn read(transaction: &ReadTransaction) -> Result<Contents, redb::Error> {
    let mut contents = Contents {
        is_incomplete: transaction.open_table(META)?.get(INCOMPLETE)?.is_some(),
        identity: identity::read(transaction)?,
        ..Contents::default()
    };
    for record in transaction.open_table(ATTACHMENTS)?.iter()? {
        let (key, json) = record?;
        match decode(key.value(), json.value()) {
            Ok(attachment) => contents.attachments.push(attachment),
            Err(why) => contents.unreadable.push(format!("{:?}: {why}", key.value())),
        }
    }
    for record in transaction.open_table(COOLDOWN)?.iter()? {
        let (address, released) = record?;
        if let Ok(address) = address.value().parse() {
            contents.cooldown.push((address, Duration::from_millis(released.value())));
        }
    }
    contents.cooldown.sort_by_key(|(_, released)| *released);
    Ok(contents)
}

/// Decodes a record, and checks that the record belongs to its key.
pub(super) fn decode(key: &str, json: &[u8]) -> Result<Attachment, serde_json::Error> {
    let attachment: Attachment = serde_json::from_slice(json)?;
    if attachment.key.to_string() == key {
        Ok(attachment)
    } else {
        Err(serde::de::Error::custom(format_args!("the record belongs to {}", attachment.key)))
    }
}

/// The layout of a store; `None` without any table.
pub(super) fn layout(transaction: &ReadTransaction) -> Result<Option<u64>, redb::Error> {
    match transaction.open_table(META) {
        Ok(meta) => match meta.get(LAYOUT)? {
            Some(layout) => Ok(Some(layout.value())),
            None => Err(redb::Error::Corrupted("no layout is recorded".to_owned())),
        },
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes the initial tables of a new store, which is incomplete until the first rebuild.
pub(super) fn initialize(
    transaction: &WriteTransaction,
    layout: u64,
    contents: &Contents,
) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(LAYOUT, layout)?;
    meta.insert(INCOMPLETE, 1)?;
    let mut attachments = transaction.open_table(ATTACHMENTS)?;
    for attachment in &contents.attachments {
        let json = serde_json::to_vec(attachment).map_err(io::Error::from)?;
        attachments.insert(attachment.key.to_string().as_str(), json.as_slice())?;
    }
    let mut cooldown = transaction.open_table(COOLDOWN)?;
    for (address, released) in &contents.cooldown {
        cooldown.insert(address.to_string().as_str(), millis(*released))?;
    }
    // Salvaged records belong where the damaged store belonged.
    contents.identity.iter().try_for_each(|it| identity::write(transaction, it))
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
