//! Extents of which something cannot be read any more: a repair that is told to read them gives up just that, by its
//! offsets, and what lies before and behind it is served and written on.

mod common;

use base::*;
use common::damage::*;
use common::*;
use nvme_device::Medium;
use nvme_format::blob::{ExtentState, PartitionBlob};
use pollux_nvme_tools::*;
use std::ops::Range;

const EXTENTS: RepairOptions = RepairOptions { extents: true };

/// Every batch of a partition: its offsets and its bytes.
fn batches(node: &mut Node, id: PartitionId) -> Vec<(Range<i64>, Vec<u8>)> {
    let (core, slot) = node.find(id);
    let start = node.stores[core].log_start(slot);
    let (bytes, _) = node.read(id, start).expect("it can be read");
    let views = batch::Batches::new(&bytes).map(|view| view.expect("a good batch"));
    views.map(|view| (view.base_offset().0..view.next_offset().0, view.bytes().to_vec())).collect()
}

/// Takes the loss on a copy; what is named is missing, everything else is as it was, and the log goes on.
fn gives_up(medium: &Medium, damaged: &Medium, id: PartitionId, ends_log: bool) {
    let mut before = open(&disk_of(medium), 2);
    let whole = batches(&mut before, id);
    let (core, slot) = before.find(id);
    let end = before.stores[core].end_offset(slot);
    let report = checked(damaged);
    assert_eq!(report.status, Status::Damaged, "{report}");
    let planned = plan_repair(damaged.clone(), EXTENTS).expect("a plan");
    let [Loss::Offsets { partition, from, to, ends_log: ends }] = &planned.losses[..] else { panic!("{planned}") };
    assert_eq!((partition, *ends), (&id.to_string(), ends_log), "{planned}");
    assert!(planned.left.is_empty(), "{planned}");
    assert!(report.findings.iter().all(|finding| finding.from >= Some(*from) && finding.from < Some(*to)), "{report}");

    let disk = disk_of(damaged);
    let done = repair_device(&mut disk.open(), &mut passing_time(), &planned, 99).expect("repaired");
    assert_eq!((done.accepted, &done.losses), (true, &planned.losses));
    let after = disk.seen();
    let (report, opened) = agreed(&after);
    assert_eq!(report.status, Status::Clean, "{report}");
    let known = GivenUpOffsets { partition: partition.clone(), from: *from, to: *to };
    assert_eq!(report.given_up, if ends_log { vec![] } else { vec![known] }, "{report}");
    assert!(plan_repair(after.clone(), EXTENTS).expect("a plan").losses.is_empty(), "once is enough");

    let left: Vec<_> = whole.iter().filter(|(range, _)| range.end <= *from || range.start >= *to).cloned().collect();
    assert!(left.len() < whole.len() && !left.is_empty());
    let mut node = opened.expect("it opens");
    assert_eq!(batches(&mut node, id), left);
    let (core, slot) = node.find(id);
    let end = if ends_log { Offset(*from) } else { end };
    let bytes = batch(&mut Random::from_seed(4), 1, 500, node.now.wall);
    assert_eq!(node.append(core, slot, &bytes, 50).expect("it takes appends").first, end);
    node.settle();
    // It is known from the journal, too, and to the next checkpoint.
    for medium in [node.disk.seen(), node.stop()] {
        let mut node = open(&disk_of(&medium), 2);
        assert_eq!(batches(&mut node, id)[..left.len()], left[..]);
    }
}

fn extents_of(medium: &Medium) -> Vec<(PartitionBlob, ExtentState)> {
    let blobs = (0..10).map(|number| blob_of(medium, partition(number)).1);
    blobs.flat_map(|blob| blob.extents.clone().into_iter().map(move |extent| (blob.clone(), extent))).collect()
}

fn stretches(extent: &ExtentState) -> usize {
    extent.entries.len() + extent.index.map_or(0, |place| place.entries as usize)
}

#[test]
fn a_stretch_within_a_log_leaves_a_gap() {
    for seed in [50, 51] {
        let medium = history(seed, 1).stop();
        let all = extents_of(&medium);
        let chosen = all.iter().filter(|(_, extent)| stretches(extent) > 4 && extent.sealed);
        let (blob, extent) = chosen.max_by_key(|(_, extent)| extent.len).expect("a large extent");
        let mut damaged = medium.clone();
        flip(&mut damaged, extent.address.start.0 + extent.len / 2 / BLOCK_SIZE as u64, 100);
        gives_up(&medium, &damaged, blob.id, false);
    }
}

#[test]
fn an_extent_whose_index_cannot_be_read_is_given_up_whole() {
    let medium = history(51, 1).stop();
    let all = extents_of(&medium);
    let indexed = |(blob, extent): &&(PartitionBlob, ExtentState)| {
        extent.index.is_some() && blob.extents.len() > 1 && blob.extents.last() != Some(extent)
    };
    let (blob, extent) = all.iter().find(indexed).expect("an index that was written");
    let place = extent.index.expect("it was looked for");
    let mut damaged = medium.clone();
    flip(&mut damaged, extent.address.start.0 + u64::from(place.block), 60);
    gives_up(&medium, &damaged, blob.id, false);
}

#[test]
fn a_log_ends_before_what_cannot_be_read_at_its_end() {
    let medium = history(52, 1).stop();
    let at_end = (0..10).map(|number| blob_of(&medium, partition(number)).1).find_map(|blob| {
        let extent = blob.extents.last()?.clone();
        // The last batch, or its first piece where it is a large one, is in blocks of the extent.
        let last = extent.entries.last().filter(|last| last.end() == extent.len)?.offset;
        let first = extent.entries.iter().find(|entry| entry.offset == last).copied()?;
        let tail = blob.tail.first().map_or(u64::MAX, |part| part.position.0);
        let on_device = extent.position.0 + u64::from(first.position) < tail;
        (stretches(&extent) > 1 && first.position > 0 && on_device).then_some((blob, extent, first))
    });
    let (blob, extent, last) = at_end.expect("a log that ends with a closed stretch");
    let mut damaged = medium.clone();
    flip(&mut damaged, extent.address.start.0 + u64::from(last.position) / BLOCK_SIZE as u64, BLOCK_SIZE - 1);
    gives_up(&medium, &damaged, blob.id, true);
}
