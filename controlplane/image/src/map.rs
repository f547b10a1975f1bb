//! A sorted map whose clones share everything: a B+ tree of shared nodes, copied along the path that is written and only
//! while somebody else still holds them. A clone is one counter; a write after it copies a few nodes of `NODE_MAX`
//! entries, and the next write to the same nodes copies nothing. That is what makes an image, a delta and the
//! controller's rollback cheap at a million partitions. (Ready-made ones exist; their licence asks more than ours, and
//! what is needed here is small.)

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

const NODE_MAX: usize = 64;

enum Node<K, V> {
    Leaf(Vec<(K, V)>),
    /// The smallest key below each child, and the child. Never empty.
    Inner(Vec<(K, Arc<Node<K, V>>)>),
}

impl<K: Clone, V: Clone> Clone for Node<K, V> {
    fn clone(&self) -> Self {
        match self {
            Node::Leaf(entries) => Node::Leaf(with_room(entries)),
            Node::Inner(children) => Node::Inner(with_room(children)),
        }
    }
}

/// A copy is made to be written: room for one more entry, or a second copy would follow at once.
fn with_room<T: Clone>(from: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(from.len() + 1);
    copy.extend_from_slice(from);
    copy
}

pub struct Map<K, V> {
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

/// A set is a map without values.
pub type Set<K> = Map<K, ()>;

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Map { root: None, len: 0 }
    }
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Map { root: self.root.clone(), len: self.len }
    }
}

impl<K, V> Map<K, V> {
    pub const fn new() -> Self {
        Map { root: None, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { path: Vec::new() };
        iter.path.extend(self.root.as_deref().map(|node| (node, 0)));
        iter
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Both are the same tree, not merely equal: then nothing has changed between them.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.root, &other.root) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

/// The child whose range holds the key: the last one that does not start above it.
fn child_of<K: Borrow<Q>, Q: Ord + ?Sized, V>(children: &[(K, Arc<Node<K, V>>)], key: &Q) -> usize {
    children.partition_point(|(first, _)| first.borrow() <= key).saturating_sub(1)
}

impl<K: Ord, V> Map<K, V> {
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Inner(children) => node = &children[child_of(children, key)].1,
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                    return Some(&entries[at].1);
                }
            }
        }
    }

    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The entries whose keys are not below `key`, in order.
    pub fn range_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let mut path = Vec::new();
        let mut next = self.root.as_deref();
        while let Some(node) = next {
            next = match node {
                Node::Inner(children) => {
                    let at = child_of(children, key);
                    path.push((node, at + 1));
                    Some(&children[at].1)
                }
                Node::Leaf(entries) => {
                    path.push((node, entries.partition_point(|(k, _)| k.borrow() < key)));
                    None
                }
            };
        }
        Iter { path }
    }
}

/// What an insertion left behind: the value it replaced, and the upper half of a node that had to be split.
struct Inserted<K, V> {
    replaced: Option<V>,
    upper: Option<(K, Arc<Node<K, V>>)>,
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::Leaf(vec![(key, value)])));
            self.len = 1;
            return None;
        };
        let inserted = insert(root, key, value);
        if let Some(upper) = inserted.upper {
            let lower = self.root.take().expect("the root was there a line ago");
            self.root = Some(Arc::new(Node::Inner(vec![(first_key(&lower), lower), upper])));
        }
        self.len += usize::from(inserted.replaced.is_none());
        inserted.replaced
    }

    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.contains(key) {
            return None;
        }
        let mut node = Arc::make_mut(self.root.as_mut()?);
        loop {
            match node {
                Node::Inner(children) => {
                    let at = child_of(children, key);
                    node = Arc::make_mut(&mut children[at].1);
                }
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                    return Some(&mut entries[at].1);
                }
            }
        }
    }

    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        if !self.contains(&key) {
            self.insert(key.clone(), V::default());
        }
        self.get_mut(&key).expect("it was inserted a line ago")
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if !self.contains(key) {
            return None;
        }
        let removed = remove(self.root.as_mut()?, key);
        self.len -= 1;
        // A root with one child is that child; an empty one is none.
        while let Some(root) = &self.root {
            self.root = match &**root {
                Node::Leaf(entries) if entries.is_empty() => None,
                Node::Inner(children) if children.len() == 1 => Some(children[0].1.clone()),
                _ => break,
            };
        }
        Some(removed)
    }
}

fn first_key<K: Clone, V>(node: &Node<K, V>) -> K {
    match node {
        Node::Leaf(entries) => entries[0].0.clone(),
        Node::Inner(children) => children[0].0.clone(),
    }
}

fn insert<K: Ord + Clone, V: Clone>(node: &mut Arc<Node<K, V>>, key: K, value: V) -> Inserted<K, V> {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => match entries.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(at) => Inserted { replaced: Some(std::mem::replace(&mut entries[at].1, value)), upper: None },
            Err(at) => {
                let rising = at == entries.len();
                entries.insert(at, (key, value));
                let upper = split(entries, rising).map(|upper| (upper[0].0.clone(), Arc::new(Node::Leaf(upper))));
                Inserted { replaced: None, upper }
            }
        },
        Node::Inner(children) => {
            let at = child_of(children, &key);
            if key < children[at].0 {
                children[at].0 = key.clone();
            }
            let mut inserted = insert(&mut children[at].1, key, value);
            if let Some(upper) = inserted.upper.take() {
                let rising = at + 1 == children.len();
                children.insert(at + 1, upper);
                inserted.upper =
                    split(children, rising).map(|upper| (upper[0].0.clone(), Arc::new(Node::Inner(upper))));
            }
            inserted
        }
    }
}

/// Splits a node that has grown too large. One that grows at its end is likely filled in order (a snapshot, a topic's
/// partitions), so it is left nearly full.
fn split<T>(entries: &mut Vec<T>, rising: bool) -> Option<Vec<T>> {
    if entries.len() <= NODE_MAX {
        return None;
    }
    Some(entries.split_off(if rising { NODE_MAX - 4 } else { NODE_MAX / 2 }))
}

/// The key must be there. A node left with little joins its neighbour.
fn remove<K: Ord + Clone + Borrow<Q>, V: Clone, Q: Ord + ?Sized>(node: &mut Arc<Node<K, V>>, key: &Q) -> V {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => {
            let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).expect("the caller looked for it");
            entries.remove(at).1
        }
        Node::Inner(children) => {
            let at = child_of(children, key);
            let removed = remove(&mut children[at].1, key);
            if size(&children[at].1) == 0 {
                children.remove(at);
            } else {
                children[at].0 = first_key(&children[at].1);
                join_with_next(children, at);
            }
            removed
        }
    }
}

fn size<K, V>(node: &Node<K, V>) -> usize {
    match node {
        Node::Leaf(entries) => entries.len(),
        Node::Inner(children) => children.len(),
    }
}

fn join_with_next<K: Clone, V: Clone>(children: &mut Vec<(K, Arc<Node<K, V>>)>, at: usize) {
    let at = if at + 1 < children.len() { at } else { at.saturating_sub(1) };
    if at + 1 >= children.len() || size(&children[at].1) + size(&children[at + 1].1) > NODE_MAX / 2 {
        return;
    }
    let (_, next) = children.remove(at + 1);
    match (Arc::make_mut(&mut children[at].1), &*next) {
        (Node::Leaf(entries), Node::Leaf(more)) => entries.extend_from_slice(more),
        (Node::Inner(entries), Node::Inner(more)) => entries.extend_from_slice(more),
        _ => unreachable!("all leaves of a tree are at one depth"),
    }
}

pub struct Iter<'a, K, V> {
    /// From the root down: a node and the next entry in it.
    path: Vec<(&'a Node<K, V>, usize)>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (node, at) = self.path.last_mut()?;
            match *node {
                Node::Leaf(entries) => {
                    if let Some((key, value)) = entries.get(*at) {
                        *at += 1;
                        return Some((key, value));
                    }
                    self.path.pop();
                }
                Node::Inner(children) => {
                    if let Some((_, child)) = children.get(*at) {
                        *at += 1;
                        self.path.push((child, 0));
                    } else {
                        self.path.pop();
                    }
                }
            }
        }
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;
    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Map::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || (self.len == other.len && self.iter().eq(other.iter()))
    }
}

impl<K: Eq, V: Eq> Eq for Map<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Map;
    use base::Random;
    use std::collections::BTreeMap;

    #[test]
    fn behaves_like_a_sorted_map_and_never_touches_its_clones() {
        let mut random = Random::from_seed(1);
        let mut map = Map::new();
        let mut model = BTreeMap::new();
        let mut kept = Vec::new();
        for step in 0..30_000u64 {
            // Three phases: it grows, it churns, it shrinks to nothing.
            let key = random.below(3000) as u32;
            let grows = match step {
                0..10_000 => 9,
                10_000..20_000 => 5,
                _ => 0,
            };
            if random.chance(grows, 10) {
                assert_eq!(map.insert(key, step), model.insert(key, step));
            } else if random.chance(1, 4) {
                assert_eq!(map.get_mut(&key).map(|v| std::mem::replace(v, step)), model.get(&key).copied());
                model.entry(key).and_modify(|v| *v = step);
            } else {
                assert_eq!(map.remove(&key), model.remove(&key));
            }
            assert_eq!(map.len(), model.len());
            assert_eq!(map.get(&key), model.get(&key));
            if step % 997 == 0 {
                assert!(map.iter().eq(model.iter()));
                assert!(map.range_from(&key).eq(model.range(key..)));
                kept.push((map.clone(), model.clone()));
            }
        }
        for (map, model) in kept {
            assert!(map.iter().eq(model.iter()));
        }
    }

    #[test]
    fn rising_keys_leave_full_nodes_and_removing_all_leaves_nothing() {
        let mut map: Map<u32, ()> = (0..10_000).map(|key| (key, ())).collect();
        assert_eq!(map.len(), 10_000);
        for key in (0..10_000).rev() {
            assert_eq!(map.remove(&key), Some(()));
        }
        assert!(map.is_empty() && map.iter().next().is_none() && map == Map::new());
    }
}
