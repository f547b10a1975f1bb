//! Maps by ids that this node gives out.

/// A map by an id that we gave out (slots, tickets, extents, topic ids): a look-up hashes in some ten instructions instead
/// of the two hundred of the standard hasher, of which one record's way through the loop took seventeen. What a client may
/// choose (names, addresses, ids that it only claims) belongs in the standard map, whose keyed hash it cannot aim at.
pub type IdMap<K, V> = rustc_hash::FxHashMap<K, V>;
