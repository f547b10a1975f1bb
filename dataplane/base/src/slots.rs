//! Slots for operations in flight, connections and whatever else is named by a small number: a token is an index and the
//! generation of its slot, so that a token that outlived its value finds nothing instead of a stranger.

/// Names a value in a `Slots`. Rooms wrap it in a type of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotToken {
    index: u32,
    generation: u32,
}

impl SlotToken {
    /// Where the slot lies: below the largest number of values that were ever held at once.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// The token as one word, for devices and kernels that carry one.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The token of a word; one that was never given out finds nothing.
    pub fn from_bits(bits: u64) -> SlotToken {
        SlotToken { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// The end of the list of vacant slots.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Entry<T> {
    Vacant { next: u32 },
    Occupied(T),
}

#[derive(Clone, Debug)]
struct Slot<T> {
    generation: u32,
    entry: Entry<T>,
}

/// Values by token. Memory is taken as the number of values grows, up to the limit, and kept.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    vacant: u32,
    len: usize,
    limit: Option<usize>,
}

impl<T> Slots<T> {
    /// At most `limit` values at once.
    pub fn bounded(limit: usize) -> Slots<T> {
        Slots { slots: Vec::new(), vacant: NONE, len: 0, limit: Some(limit) }
    }

    /// As many values as there is memory; for numbers that something else bounds.
    pub fn growable() -> Slots<T> {
        Slots { slots: Vec::new(), vacant: NONE, len: 0, limit: None }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.len >= limit)
    }

    /// Takes the value, or gives it back where the slots are full.
    pub fn insert(&mut self, value: T) -> Result<SlotToken, T> {
        if self.is_full() {
            return Err(value);
        }
        Ok(self.occupy(|_| value))
    }

    /// Takes the value that `make` builds from its own token, or does nothing where the slots are full.
    pub fn insert_with(&mut self, make: impl FnOnce(SlotToken) -> T) -> Option<SlotToken> {
        (!self.is_full()).then(|| self.occupy(make))
    }

    fn occupy(&mut self, make: impl FnOnce(SlotToken) -> T) -> SlotToken {
        let index = if self.vacant == NONE {
            let index = u32::try_from(self.slots.len()).ok().filter(|i| *i != NONE).expect("fewer slots than 2^32");
            self.slots.push(Slot { generation: 0, entry: Entry::Vacant { next: NONE } });
            index
        } else {
            self.vacant
        };
        let slot = &mut self.slots[index as usize];
        let token = SlotToken { index, generation: slot.generation };
        let Entry::Vacant { next } = slot.entry else { unreachable!("an occupied slot in the list of vacant ones") };
        slot.entry = Entry::Occupied(make(token));
        self.vacant = next;
        self.len += 1;
        token
    }

    pub fn get(&self, token: SlotToken) -> Option<&T> {
        match self.slots.get(token.index()) {
            Some(Slot { generation, entry: Entry::Occupied(value) }) if *generation == token.generation => Some(value),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, token: SlotToken) -> Option<&mut T> {
        match self.slots.get_mut(token.index()) {
            Some(Slot { generation, entry: Entry::Occupied(value) }) if *generation == token.generation => Some(value),
            _ => None,
        }
    }

    pub fn contains(&self, token: SlotToken) -> bool {
        self.get(token).is_some()
    }

    /// Gives the value back; its token finds nothing from now on.
    pub fn remove(&mut self, token: SlotToken) -> Option<T> {
        self.get(token)?;
        let slot = &mut self.slots[token.index()];
        let Entry::Occupied(value) = std::mem::replace(&mut slot.entry, Entry::Vacant { next: self.vacant }) else {
            unreachable!("it was just found")
        };
        self.len -= 1;
        // A slot whose generations are used up is never used again, so that no token is ever given out twice.
        match slot.generation.checked_add(1) {
            Some(generation) => {
                slot.generation = generation;
                self.vacant = token.index;
            }
            None => slot.entry = Entry::Vacant { next: NONE },
        }
        Some(value)
    }

    /// The values with their tokens, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (SlotToken, &T)> {
        self.iter_from(0)
    }

    /// As `iter`, from this slot on: for who looks at some of them at a time.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = (SlotToken, &T)> {
        let slots = self.slots.get(first..).unwrap_or_default();
        slots.iter().zip(first..).filter_map(|(slot, index)| match &slot.entry {
            Entry::Occupied(value) => Some((SlotToken { index: index as u32, generation: slot.generation }, value)),
            Entry::Vacant { .. } => None,
        })
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlotToken, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| match &mut slot.entry {
            Entry::Occupied(value) => Some((SlotToken { index: index as u32, generation: slot.generation }, value)),
            Entry::Vacant { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use std::collections::HashMap;

    #[test]
    fn a_token_finds_its_value_and_no_later_one() {
        let mut slots = Slots::bounded(2);
        let a = slots.insert('a').unwrap();
        let b = slots.insert_with(|token| if token.index() == 1 { 'b' } else { '?' }).unwrap();
        assert!(slots.is_full());
        assert_eq!(slots.insert('c'), Err('c'));
        assert_eq!(slots.insert_with(|_| unreachable!()), None);
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        let c = slots.insert('c').unwrap();
        assert_eq!((c.index(), slots.get(a), slots.get(c)), (0, None, Some(&'c')));
        *slots.get_mut(b).unwrap() = 'B';
        assert_eq!(slots.get_mut(a), None);
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(c, &'c'), (b, &'B')]);
        assert_eq!(slots.iter_from(1).collect::<Vec<_>>(), [(b, &'B')]);
        assert_eq!(slots.iter_from(3).count(), 0);
        assert_eq!(SlotToken::from_bits(c.to_bits()), c);
        assert_eq!(slots.get(SlotToken::from_bits(u64::MAX)), None);
    }

    #[test]
    fn a_slot_without_generations_is_retired() {
        let mut slots = Slots::growable();
        let a = slots.insert(1).unwrap();
        slots.slots[0].generation = u32::MAX;
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.remove(SlotToken { generation: u32::MAX, ..a }), Some(1));
        assert_eq!(slots.insert(2).unwrap().index(), 1);
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn agrees_with_a_map_over_many_steps() {
        let mut random = Random::from_seed(11);
        let (mut slots, mut model, mut dead) = (Slots::growable(), HashMap::new(), Vec::new());
        for step in 0..20_000u64 {
            if random.chance(1, 2) || model.is_empty() {
                let token = slots.insert(step).unwrap();
                assert!(model.insert(token, step).is_none(), "a token given out twice");
            } else {
                let token = *model.keys().nth(random.below(model.len().min(8) as u64) as usize).unwrap();
                assert_eq!(slots.remove(token), model.remove(&token));
                dead.push(token);
            }
            assert_eq!(slots.len(), model.len());
        }
        assert!(model.iter().all(|(token, value)| slots.get(*token) == Some(value)));
        assert!(dead.iter().all(|token| !slots.contains(*token)));
        for (_, value) in slots.iter_mut() {
            *value += 1;
        }
        assert!(slots.iter().all(|(token, value)| model[&token] + 1 == *value));
    }
}
