//! A persistent map: 256 shared hash maps. A new version copies only the buckets it changes, so that a delta on a
//! cluster with 100,000 topics costs the topics it names and their bucket mates, not all of them.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

const BUCKETS: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Buckets<K, V> {
    buckets: Vec<Arc<HashMap<K, V>>>,
    hasher: RandomState,
    len: usize,
}

impl<K, V> Default for Buckets<K, V> {
    fn default() -> Self {
        let empty = Arc::new(HashMap::new());
        Buckets { buckets: vec![empty; BUCKETS], hasher: RandomState::new(), len: 0 }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Buckets<K, V> {
    fn bucket<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        self.hasher.hash_one(key) as usize % BUCKETS
    }

    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.buckets[self.bucket(key)].get(key)
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let bucket = self.bucket(&key);
        let old = Arc::make_mut(&mut self.buckets[bucket]).insert(key, value);
        self.len += usize::from(old.is_none());
        old
    }

    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let bucket = self.bucket(key);
        if !self.buckets[bucket].contains_key(key) {
            return None;
        }
        let old = Arc::make_mut(&mut self.buckets[bucket]).remove(key);
        self.len -= usize::from(old.is_some());
        old
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.buckets.iter().flat_map(|bucket| bucket.iter())
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_share_what_did_not_change() {
        let mut first = Buckets::default();
        for i in 0..1000u32 {
            first.insert(i, i * 2);
        }
        let mut second = first.clone();
        second.insert(7, 0);
        second.remove(&8);
        assert_eq!((first.get(&7), second.get(&7)), (Some(&14), Some(&0)));
        assert_eq!((first.get(&8), second.get(&8)), (Some(&16), None));
        assert_eq!((first.len(), second.len()), (1000, 999));
        let copied = first.buckets.iter().zip(&second.buckets).filter(|(a, b)| !Arc::ptr_eq(a, b)).count();
        assert!(copied <= 2, "{copied} buckets were copied for two changes");
    }
}
