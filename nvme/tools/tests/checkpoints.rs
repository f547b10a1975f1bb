//! Damage inside checkpoints: what cannot be read costs its partition alone, and two owners of a place are refused.

mod common;

use base::*;
use common::damage::*;
use common::*;
use nvme_device::Medium;
use nvme_log::{AppendError, OpenError};
use pollux_nvme_tools::*;

/// Damages a partition's blob in every checkpoint that has it.
fn damage_blobs(medium: &mut Medium, id: PartitionId) {
    let (shard, _) = blob_of(medium, id);
    let mut done = Vec::new();
    for root in roots(medium, shard) {
        let places = directory(medium, &root).partitions;
        let Some((_, place)) = places.iter().find(|(other, _)| *other == id) else { continue };
        let byte = usize::from(place.at) + 40;
        let place = (place.block.0 + (byte / BLOCK_SIZE) as u64, byte % BLOCK_SIZE);
        if !done.contains(&place) {
            flip(medium, place.0, place.1);
            done.push(place);
        }
    }
    assert!(!done.is_empty(), "{id} is in a checkpoint");
}

#[test]
fn an_unreadable_blob_costs_its_partition_alone() {
    // The first is in the journal no more, the other is; a third way is a node that stopped cleanly.
    for (number, clean) in [(0, false), (9, false), (9, true)] {
        let node = history(80, 2);
        let state = node.state();
        let medium = if clean { node.stop() } else { node.kill() };
        let id = partition(number);
        let mut damaged = medium.clone();
        damage_blobs(&mut damaged, id);
        let (report, opened) = agreed(&damaged);
        assert_eq!(report.status, Status::Suspect, "{report}");
        assert_eq!(report.suspects.len(), 1, "{report}");
        let mut node = opened.expect("it opens");
        for was in &state {
            let found = node.state().into_iter().find(|(other, ..)| *other == was.0).expect("it is kept");
            if was.0 == id {
                assert_eq!(found.3, Some(Offset(0)));
                assert!(clean || number == 0 || found.2 == was.2, "its offsets are known from the journal: {found:?}");
            } else {
                assert_eq!(&found, was);
            }
        }
        let (core, slot) = node.find(id);
        let bytes = batch(&mut Random::from_seed(4), 1, 500, node.now.wall);
        assert_eq!(node.append(core, slot, &bytes, 50), Err(AppendError::Suspect));
        node.read(partition(8), Offset(0)).expect("another one of it is read");
        // It is no less suspect after another start.
        let (report, _) = agreed(&node.stop());
        assert_eq!(report.suspects.len(), 1, "{report}");
        let (done, _) = repaired(&damaged);
        assert_eq!(done.losses.len(), 1, "{done}");
    }
}

#[test]
fn a_slab_of_two_shards_is_refused_by_the_opening_and_nothing_is_changed() {
    let medium = history(81, 2).stop();
    let shard_of = |number| blob_of(&medium, partition(number)).0;
    let numbers = (0..10).flat_map(|one| (0..10).map(move |other| (one, other)));
    let (one, other) = numbers.map(|(a, b)| (shard_of(a), shard_of(b))).find(|(a, b)| a < b).expect("two shards");
    let slab = directory(&medium, &roots(&medium, one)[0]).slabs[0];
    let mut damaged = medium.clone();
    for root in roots(&medium, other) {
        forge_directory(&mut damaged, root, |directory| directory.slabs.push(slab));
    }
    let (report, opened) = agreed(&damaged);
    assert_eq!(opened.err(), Some(OpenError::TwoOwners { slab, one, other }));
    assert_eq!(report.status, Status::Damaged, "{report}");
    let disk = disk_of(&damaged);
    assert!(try_open(&disk, 2).is_err());
    assert!(disk.seen() == damaged, "a refused namespace is as it was");
    assert!(matches!(plan_repair(damaged, RepairOptions::default()), Err(ToolError::Damaged(_))));
}

#[test]
fn an_impossible_directory_is_as_good_as_unreadable() {
    let medium = history(82, 1).stop();
    let (shard, _) = blob_of(&medium, partition(9));
    let map = superblock(&medium).map;
    type Forgery = fn(&mut nvme_format::directory::Directory, nvme_format::region::RegionMap);
    let forgeries: [Forgery; 4] = [
        |directory, _| directory.storage.push(directory.storage[0]),
        |directory, map| directory.storage[0].start = Block(map.roots.0),
        |directory, _| directory.storage.clear(),
        |directory, _| directory.slabs.push(nvme_format::SlabId(1 << 30)),
    ];
    for forgery in forgeries {
        let mut damaged = medium.clone();
        let current = roots(&medium, shard);
        forge_directory(&mut damaged, current[0], |directory| forgery(directory, map));
        let opened = try_open(&disk_of(&damaged), 1);
        assert!(opened.is_ok_and(|node| node.report.older_checkpoints == vec![shard]));
        for root in &current[1..] {
            forge_directory(&mut damaged, *root, |directory| forgery(directory, map));
        }
        assert_eq!(try_open(&disk_of(&damaged), 1).err(), Some(OpenError::ShardUnreadable { shard }));
    }
}
