//! Every kind of damage: what check says of it, that the next opening finds just that, and what repair does.

mod common;

use base::*;
use common::damage::*;
use common::*;
use nvme_device::Medium;
use nvme_format::blob::PartitionBlob;
use nvme_log::{AppendError, OpenError, ReadError};
use pollux_nvme_tools::*;

#[test]
fn a_clean_namespace_is_clean_and_a_killed_one_recoverable() {
    for (seed, cores) in [(1, 1), (2, 2)] {
        let node = history(seed, cores);
        let state = node.state();
        let killed = node.disk.seen();
        let stopped = node.stop();
        let (report, opened) = agreed(&stopped);
        assert_eq!(report.status, Status::Clean, "{report}");
        assert_eq!(opened.expect("it opens").state(), state);
        let (report, opened) = agreed(&killed);
        assert_eq!(report.status, Status::Recoverable, "{report}");
        assert_eq!(report.findings.len(), 1, "{report}");
        assert!(report.batches > 50 && report.extents > 10 && report.stretches > 50, "{report}");
        assert_eq!(opened.expect("it opens").state(), state);
        assert!(plan_repair(killed, RepairOptions::default()).expect("a plan").losses.is_empty());
    }
}

#[test]
fn progress_ends_where_it_says_and_quick_reads_no_extent() {
    let medium = history(4, 1).stop();
    let mut last = None;
    let options = CheckOptions { quick: false };
    check_source(medium.clone(), options, &mut |progress| last = Some(progress)).expect("checked");
    let last = last.expect("there was progress");
    assert_eq!(last.done_bytes, last.all_bytes);
    let quick = check_source(medium, CheckOptions { quick: true }, &mut |_| panic!("none")).expect("checked");
    assert_eq!((quick.status, quick.batches), (Status::Clean, 0));
}

#[test]
fn a_fresh_format_is_clean_and_an_empty_or_foreign_device_is_told_apart() {
    let disk = format(64, 2, &mut Random::from_seed(6));
    let (report, _) = agreed(&disk.seen());
    assert_eq!(report.status, Status::Clean, "{report}");
    let empty = Medium::new(1 << 14);
    assert!(matches!(check_source(empty.clone(), CheckOptions::default(), &mut |_| {}), Err(ToolError::NotFormatted)));
    let mut foreign = empty;
    foreign.write(Block(0), &[7; BLOCK_SIZE]);
    assert!(matches!(check_source(foreign.clone(), CheckOptions::default(), &mut |_| {}), Err(ToolError::Unreadable)));
    assert!(matches!(plan_repair(foreign, RepairOptions::default()), Err(ToolError::Unreadable)));
}

#[test]
fn a_damaged_commit_below_a_stated_number_makes_suspects_that_repair_serves_again() {
    let mut breaks = 0;
    let mut with_suspects = 0;
    for seed in 10..12 {
        let medium = history(seed, 2).kill();
        let lane = LaneId((seed % 2) as u16);
        let all = commits(&medium, lane);
        let first = checked(&medium).lanes[usize::from(lane.0)].first_sequence;
        let stated = all.iter().map(|header| header.durable).max().expect("commits");
        let needed: Vec<_> =
            all.iter().filter(|header| header.sequence >= first && header.sequence <= stated).collect();
        for header in [needed[0], needed[needed.len() / 2], needed[needed.len() - 1]] {
            // In the header and, where there is one, in the payload.
            let byte = if breaks % 2 == 0 { 20 } else { 300.min(127 + header.payload_len as usize) };
            let mut damaged = medium.clone();
            flip(&mut damaged, block_of(&medium, header), byte);
            let (report, opened) = agreed(&damaged);
            assert_eq!(report.lanes[usize::from(lane.0)].breaks, 1, "{report}");
            breaks += 1;
            let mut node = opened.expect("it opens");
            if report.suspects.is_empty() {
                assert_eq!(report.status, Status::Recoverable, "{report}");
                continue;
            }
            with_suspects += 1;
            assert_eq!(report.status, Status::Suspect, "{report}");
            let (id, ..) = node.state().into_iter().find(|(.., from)| from.is_some()).expect("a suspect");
            let (core, slot) = node.find(id);
            let bytes = batch(&mut Random::from_seed(4), 1, 500, node.now.wall);
            assert_eq!(node.append(core, slot, &bytes, 50), Err(AppendError::Suspect));
            let (done, _) = repaired(&damaged);
            assert_eq!(done.losses.len(), report.suspects.len());
        }
    }
    assert!(breaks == 6 && with_suspects >= 3, "{breaks} {with_suspects}");
}

#[test]
fn a_torn_tail_is_the_end_and_no_damage() {
    let mut node = history(20, 1);
    // One more append, whose commit nothing states durable: the process dies in the turn that completes it.
    let (core, slot) = node.find(partition(9));
    let before = node.state();
    let bytes = batch(&mut Random::from_seed(8), 1, 9_000, node.now.wall);
    node.append(core, slot, &bytes, 9).expect("appended");
    while node.stores[core].durable_offset(slot) < node.stores[core].end_offset(slot) {
        node.turn();
    }
    let medium = node.kill();
    let last = *commits(&medium, LaneId(0)).last().expect("a commit");
    assert!(last.durable < last.sequence);
    let (whole, _) = agreed(&medium);
    assert_eq!(whole.status, Status::Recoverable, "{whole}");
    for (block, byte) in [(0, 90), (0, 3000), (u64::from(last.blocks) - 1, 5)] {
        let mut torn = medium.clone();
        flip(&mut torn, block_of(&medium, &last) + block, byte);
        let (report, opened) = agreed(&torn);
        assert_eq!(report.status, Status::Recoverable, "{report}");
        assert_eq!(opened.expect("it opens").state(), before);
        let end = if byte == 90 { "quiet" } else { "in flight" };
        assert_eq!(report.lanes[0].end, end, "{report}");
    }
}

#[test]
fn a_duplicated_commit_is_not_believed() {
    let medium = history(21, 1).kill();
    let all = commits(&medium, LaneId(0));
    let (old, last) = (all[all.len() / 2], all[all.len() - 1]);
    let bytes = medium.read_range(BlockRange::new(Block(block_of(&medium, &old)), old.blocks));
    let mut doubled = medium.clone();
    doubled.write(Block(block_of(&medium, &last) + u64::from(last.blocks)), &bytes);
    let (report, opened) = agreed(&doubled);
    assert_eq!(report.status, Status::Recoverable, "{report}");
    assert_eq!(opened.expect("it opens").state(), open(&disk_of(&medium), 1).state());
}

#[test]
fn one_bad_root_or_directory_costs_nothing_two_cost_the_shard() {
    let medium = history(30, 2).kill();
    let state = open(&disk_of(&medium), 2).state();
    let (shard, _) = blob_of(&medium, partition(9));
    let map = superblock(&medium).map;
    let current = roots(&medium, shard);
    for root in &current {
        for block in [map.root(shard, usize::from(root.slot)), root.directory] {
            let mut damaged = medium.clone();
            flip(&mut damaged, block.0, 70);
            let (report, opened) = agreed(&damaged);
            assert_eq!(report.status, Status::Recoverable, "{report}");
            assert!(report.findings.iter().any(|f| f.place.starts_with(&format!("shard {shard}"))), "{report}");
            assert_eq!(opened.expect("it opens").state(), state);
        }
    }
    let mut damaged = medium.clone();
    for root in &current {
        flip(&mut damaged, map.root(shard, usize::from(root.slot)).0, 70);
    }
    let (report, opened) = agreed(&damaged);
    assert_eq!(opened.err(), Some(OpenError::ShardUnreadable { shard }));
    assert_eq!(report.status, Status::Damaged, "{report}");
    let (done, after) = repaired(&damaged);
    assert!(done.losses.contains(&Loss::Shard { shard: shard.0 }), "{done}");
    // What other shards hold is untouched.
    let lost: Vec<_> = blobs(&medium, &current[0]).into_iter().map(|blob| blob.id).collect();
    let kept = open(&disk_of(&after), 2).state();
    for partition in state.iter().filter(|(id, ..)| !lost.contains(id)) {
        assert!(kept.contains(partition), "{partition:?} of {kept:?}");
    }
}

#[test]
fn superblock_copies_are_replaced_until_too_few_agree() {
    let medium = history(40, 1).stop();
    let copies = superblock(&medium).map.superblock_copies();
    for bad in [vec![0], vec![3], vec![0, 2], vec![1, 2]] {
        let mut damaged = medium.clone();
        for copy in &bad {
            flip(&mut damaged, copies[*copy].0, 33);
        }
        let (report, opened) = agreed(&damaged);
        assert_eq!(report.status, Status::Recoverable, "{report}");
        assert_eq!(report.findings.len(), bad.len(), "{report}");
        let healed = opened.expect("it opens").stop();
        assert_eq!(checked(&healed).status, Status::Clean);
    }
    let mut damaged = medium.clone();
    for copy in [0, 1, 2] {
        flip(&mut damaged, copies[copy].0, 33);
    }
    let refused = check_source(damaged.clone(), CheckOptions::default(), &mut |_| {});
    assert!(matches!(refused, Err(ToolError::Unreadable)));
    assert!(matches!(plan_repair(damaged.clone(), RepairOptions::default()), Err(ToolError::Unreadable)));
    let disk = disk_of(&damaged);
    let planned = plan_repair(medium, RepairOptions::default()).expect("a plan");
    let refused = repair_device(&mut disk.open(), &mut passing_time(), &planned, 1);
    assert!(matches!(refused, Err(ToolError::Unreadable)));
    assert_eq!(disk.seen(), damaged, "nothing is written over what cannot be read");
}

#[test]
fn a_bad_stretch_is_named_and_reading_it_fails_there() {
    let medium = history(50, 1).stop();
    let (_, blob) = blob_of(&medium, partition(0));
    let extent = blob.extents.iter().max_by_key(|extent| extent.len).expect("it has extents");
    let mut damaged = medium.clone();
    flip(&mut damaged, extent.address.start.0 + 3, 100);
    let (report, opened) = agreed(&damaged);
    assert_eq!(report.status, Status::Damaged, "{report}");
    let named: Vec<_> = report.findings.iter().collect();
    assert_eq!(named.len(), 1, "{report}");
    assert_eq!(named[0].partition, Some(partition(0).to_string()));
    let from = Offset(named[0].from.expect("an offset"));
    let mut node = opened.expect("it opens");
    assert_eq!(node.read(partition(0), from).err(), Some((from, ReadError::Corrupt)));
    // Nothing is to be given up for it: a replica may have it.
    assert!(plan_repair(damaged, RepairOptions::default()).expect("a plan").losses.is_empty());
}

#[test]
fn a_bad_index_block_is_named_and_reading_through_it_fails() {
    let medium = history(51, 1).stop();
    let ids = (0..10).map(partition);
    let indexed = ids.map(|id| blob_of(&medium, id).1).find_map(|blob| {
        let extent = blob.extents.iter().find(|extent| extent.index.is_some())?;
        Some((blob.id, extent.clone()))
    });
    let (id, extent) = indexed.expect("some extent is closed and has its index written");
    let place = extent.index.expect("it was looked for");
    let mut damaged = medium.clone();
    flip(&mut damaged, extent.address.start.0 + u64::from(place.block), 60);
    let (report, opened) = agreed(&damaged);
    assert_eq!(report.status, Status::Damaged, "{report}");
    assert_eq!(report.findings.len(), 1, "{report}");
    assert!(report.findings[0].text.contains("index"), "{report}");
    let mut node = opened.expect("it opens");
    let (core, slot) = node.find(id);
    let from = node.stores[core].log_start(slot).max(extent.base_offset);
    assert_eq!(node.read(id, from).err(), Some((from, ReadError::Corrupt)));
}

#[test]
fn two_owners_are_corruption() {
    let medium = history(60, 2).stop();
    let all: Vec<_> = (0..10).map(|number| blob_of(&medium, partition(number))).collect();
    let order = |blob: &PartitionBlob| blob.extents.first().map(|extent| extent.address);
    // Two partitions of one shard, and of two.
    for same in [true, false] {
        let pair = all.iter().flat_map(|a| all.iter().map(move |b| (a, b))).find(|((a, one), (b, other))| {
            let fits = order(one).zip(order(other)).is_some_and(|(one, other)| one.order >= other.order);
            one.id != other.id && (a == b) == same && fits
        });
        let ((_, victim), (shard, thief)) = pair.expect("the history has such a pair");
        let stolen = order(victim).expect("it was looked for");
        let mut damaged = medium.clone();
        forge(&mut damaged, *shard, thief.id, |blob| blob.extents[0].address = stolen);
        let (report, _) = agreed(&damaged);
        assert!(report.status >= Status::Suspect, "{report}");
        if same {
            assert!(report.suspects.iter().any(|suspect| suspect.from < suspect.end), "{report}");
            repaired(&damaged);
        } else {
            assert!(report.findings.iter().any(|finding| finding.place == "two owners"), "{report}");
            assert_eq!(report.status, Status::Damaged);
            assert!(matches!(plan_repair(damaged, RepairOptions::default()), Err(ToolError::Damaged(_))));
        }
    }
}

#[test]
fn a_blob_that_contradicts_the_extents_is_found_though_all_checksums_hold() {
    let medium = history(61, 1).stop();
    let (shard, blob) = blob_of(&medium, partition(9));
    assert!(blob.segments.len() > 1 && !blob.epochs.is_empty());
    type Forgery = fn(&mut PartitionBlob);
    let forgeries: [(Forgery, &str); 4] = [
        (|blob| blob.segments[1].position.0 += 7, "within a batch"),
        (|blob| blob.epochs[0].epoch.0 += 100, "epoch"),
        (|blob| blob.extents[0].base_offset.0 += 1, ""),
        (|blob| blob.high_watermark.0 = blob.end.0 + 1, "high watermark"),
    ];
    for (change, text) in forgeries {
        let mut damaged = medium.clone();
        forge(&mut damaged, shard, blob.id, change);
        let report = checked(&damaged);
        assert_eq!(report.status, Status::Damaged, "{report}");
        assert!(report.findings.iter().any(|finding| finding.text.contains(text)), "{report}");
    }
}

/// A shard that goes back to its older checkpoint needs more of the journal than the others of its lane: a damaged place
/// there takes nothing from partitions that a newer checkpoint proves.
#[test]
fn damage_before_a_shards_checkpoint_makes_no_suspects_of_it() {
    let medium = history(31, 1).kill();
    let (shard, _) = blob_of(&medium, partition(9));
    let map = superblock(&medium).map;
    let [newest, older] = roots(&medium, shard)[..] else { panic!("two checkpoints") };
    let mut between = commits(&medium, LaneId(0));
    between.retain(|header| (older.next_sequence..newest.next_sequence).contains(&header.sequence));
    let header = between[between.len() / 2];
    let mut damaged = medium.clone();
    flip(&mut damaged, map.root(shard, usize::from(newest.slot)).0, 70);
    flip(&mut damaged, block_of(&medium, &header), 20);
    let (report, opened) = agreed(&damaged);
    assert_eq!((report.status, report.lanes[0].breaks), (Status::Suspect, 1), "{report}");
    let own: Vec<String> = blobs(&medium, &newest).iter().map(|blob| blob.id.to_string()).collect();
    assert!(report.suspects.iter().all(|suspect| own.contains(&suspect.partition)), "{report}");
    let whole = open(&disk_of(&medium), 1).state();
    let opened = opened.expect("it opens").state();
    for partition in whole.iter().filter(|(id, ..)| !own.contains(&id.to_string())) {
        assert!(opened.contains(partition), "{partition:?}");
    }
}
