//! What the store told and the loop has not heard yet, in its order: one commit may be that of very many partitions, so
//! the loop hears some in every turn.

use nvme_log::LogEvent;

/// Two lists, since the store appends to one; memory is kept.
#[derive(Debug, Default)]
pub(crate) struct LogEvents {
    /// In reverse.
    first: Vec<LogEvent>,
    told: Vec<LogEvent>,
}

impl LogEvents {
    /// Where the store puts what it tells.
    pub fn inlet(&mut self) -> &mut Vec<LogEvent> {
        &mut self.told
    }

    /// The next event while a turn's budget lasts.
    pub fn pop_within(&mut self, budget: &mut usize) -> Option<LogEvent> {
        if *budget == 0 {
            return None;
        }
        let event = self.pop()?;
        *budget -= 1;
        Some(event)
    }

    fn pop(&mut self) -> Option<LogEvent> {
        if self.first.is_empty() {
            self.first.extend(self.told.drain(..).rev());
        }
        self.first.pop()
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.told.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_heard_in_their_order() {
        let mut events = LogEvents::default();
        let offset = |event| match event {
            LogEvent::ViewSaved { metadata_offset } => metadata_offset,
            other => panic!("{other:?}"),
        };
        let tell = |events: &mut LogEvents, offsets: std::ops::Range<i64>| {
            events.inlet().extend(offsets.map(|metadata_offset| LogEvent::ViewSaved { metadata_offset }));
        };
        tell(&mut events, 0..3);
        assert_eq!(events.pop().map(offset), Some(0));
        tell(&mut events, 3..5);
        let heard: Vec<i64> = std::iter::from_fn(|| events.pop()).map(offset).collect();
        assert_eq!(heard, [1, 2, 3, 4]);
        assert!(events.is_empty());
    }

    #[test]
    fn a_turn_hears_so_many() {
        let mut events = LogEvents::default();
        events.inlet().extend((0..1000).map(|metadata_offset| LogEvent::ViewSaved { metadata_offset }));
        let mut turns = Vec::new();
        while !events.is_empty() {
            let mut budget = 300;
            turns.push(std::iter::from_fn(|| events.pop_within(&mut budget)).count());
        }
        assert_eq!(turns, [300, 300, 300, 100]);
    }
}
