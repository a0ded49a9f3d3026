//! The rows that judge a packet, read by key from the pinned maps: what the programs see, whatever the agent
//! believes to have written.

use std::path::Path;

use agent_common::{
    VifEntry, VifKey,
    policy::{Bits, BlockKey, NamedKey, PackedSubject, Peer, PeerKey, PortKey, RuleKey, Ruleset, Subject},
};
use aya::{
    Pod,
    maps::{
        HashMap as BpfHashMap, Map, MapData, MapError,
        lpm_trie::{Key, LpmTrie},
    },
};
use ferrule_policy::{EndpointId, Maps, Packet, Recorded, recorded};

use super::{Dataplane, MapFailure};

/// The directory of the pins.
struct Pinned<'a>(&'a Path);

// === impl Dataplane ===

impl Dataplane {
    /// The rows that judge a packet at one of its ends.
    ///
    /// # Errors
    /// If a map cannot be opened or read.
    pub fn judging(&self, packet: &Packet) -> Result<Recorded, MapFailure> {
        recorded(&Pinned(self.pins()), packet)
    }
}

// === impl Pinned ===

impl Pinned<'_> {
    fn hash<K: Pod, V: Pod>(&self, map: &'static str, key: &K) -> Result<Option<V>, MapFailure> {
        let read = || {
            let map: BpfHashMap<_, K, V> = Map::HashMap(self.open(map)?).try_into()?;
            found(map.get(key, 0))
        };
        read().map_err(failure(map))
    }

    /// The value of the longest prefix.
    fn trie<const N: usize, V: Pod>(
        &self,
        map: &'static str,
        len: u32,
        data: [u8; N],
    ) -> Result<Option<V>, MapFailure>
    where
        [u8; N]: Pod,
    {
        let read = || {
            let map: LpmTrie<_, [u8; N], V> = Map::LpmTrie(self.open(map)?).try_into()?;
            found(map.get(&Key::new(len, data), 0))
        };
        read().map_err(failure(map))
    }

    fn open(&self, map: &str) -> Result<MapData, MapError> {
        MapData::from_pin(self.0.join(map))
    }
}

impl Maps for Pinned<'_> {
    type Error = MapFailure;

    fn subject(&self, EndpointId(ifindex): EndpointId) -> Result<Option<Subject>, MapFailure> {
        let vif: Option<VifEntry> = self.hash("VIFS", &VifKey { ifindex })?;
        Ok(vif.map(|it| it.subject).filter(|it| it.is_known()).map(PackedSubject::unpack))
    }

    fn ruleset(&self, ruleset: u32) -> Result<Option<Ruleset>, MapFailure> {
        self.hash("RULESETS", &ruleset)
    }

    fn peer(&self, key: PeerKey) -> Result<Option<Peer>, MapFailure> {
        self.hash("PEERS", &key)
    }

    fn block(&self, BlockKey { prefix_len, table, address }: BlockKey) -> Result<Option<u32>, MapFailure> {
        let mut data = [0; 20];
        let (first, rest) = data.split_at_mut(4);
        first.copy_from_slice(&table.to_ne_bytes());
        rest.copy_from_slice(&address);
        self.trie("BLOCKS", prefix_len, data)
    }

    fn rule(&self, key: RuleKey) -> Result<Option<Bits>, MapFailure> {
        self.hash("RULES", &key)
    }

    fn named(&self, key: NamedKey) -> Result<Option<Bits>, MapFailure> {
        self.hash("NAMED", &key)
    }

    fn port(
        &self,
        PortKey { prefix_len, ruleset, protocol, reserved, port: [high, low] }: PortKey,
    ) -> Result<Option<Bits>, MapFailure> {
        let [a, b, c, d] = ruleset.to_ne_bytes();
        self.trie("PORTS", prefix_len, [a, b, c, d, protocol, reserved, high, low])
    }
}

/// A missing row is none.
fn found<V>(read: Result<V, MapError>) -> Result<Option<V>, MapError> {
    match read {
        Ok(row) => Ok(Some(row)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn failure(map: &'static str) -> impl FnOnce(MapError) -> MapFailure {
    move |source| MapFailure::Access { action: "read", map, source: Box::new(source) }
}
