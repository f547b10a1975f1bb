//! Checkpoints and journals by hand: what lies where, forged or damaged; and checks, openings and repairs compared.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use super::*;
use nvme_format::blob::PartitionBlob;
use nvme_format::directory::Directory;
use nvme_format::journal::CommitHeader;
use nvme_format::root::{Root, RootReading};
use nvme_format::superblock::{Reading, Superblock, read};
use nvme_format::{crc, region};
use pollux_nvme_tools::*;

pub fn checked(medium: &Medium) -> CheckReport {
    check_source(medium.clone(), CheckOptions::default(), &mut |_| {}).expect("it can be checked")
}

/// Checks, opens, and compares what the two say.
pub fn agreed(medium: &Medium) -> (CheckReport, Result<Node, OpenError>) {
    let report = checked(medium);
    let opened = try_open(&disk_of(medium), 2);
    match &opened {
        Err(error) => {
            assert!(!report.prediction.opens, "{report}");
            assert_eq!(report.prediction.error, Some(format!("an opening refuses the namespace: {error}")));
        }
        Ok(node) => {
            let found = &node.report;
            assert!(report.prediction.opens, "{report}");
            assert_eq!(report.prediction.clean, found.clean);
            assert_eq!(report.prediction.commits, found.commits);
            assert_eq!(report.prediction.partitions, found.partitions);
            let rejected: Vec<_> = found.rejected.iter().map(|(lane, sequence)| (lane.0, *sequence)).collect();
            assert_eq!(report.prediction.rejected, rejected);
            let mut suspects: Vec<_> = node
                .state()
                .into_iter()
                .filter_map(|(id, _, end, from)| {
                    from.map(|from| SuspectPartition { partition: id.to_string(), from: from.0, end: end.0 })
                })
                .collect();
            let mut predicted = report.suspects.clone();
            predicted.sort_by(|a, b| a.partition.cmp(&b.partition));
            suspects.sort_by(|a, b| a.partition.cmp(&b.partition));
            assert_eq!(predicted, suspects, "{report}");
        }
    }
    (report, opened)
}

pub fn superblock(medium: &Medium) -> Superblock {
    for copies in region::superblock_candidates(medium.blocks()) {
        let blocks = copies.map(|copy| medium.read_range(BlockRange::new(copy, 1)));
        if let Reading::Present { superblock, .. } = read([&blocks[0], &blocks[1], &blocks[2], &blocks[3]]) {
            return *superblock;
        }
    }
    panic!("no superblock");
}

/// The current roots of a shard, newest first.
pub fn roots(medium: &Medium, shard: ShardId) -> Vec<Root> {
    let superblock = superblock(medium);
    let mut roots: Vec<Root> = (0..2)
        .filter_map(|slot| {
            let block = medium.read_range(BlockRange::new(superblock.map.root(shard, slot), 1));
            match Root::read(&block, superblock.namespace, shard, slot as u8) {
                RootReading::Present(root) if root.generation == superblock.generation => Some(root),
                _ => None,
            }
        })
        .collect();
    roots.sort_by_key(|root| std::cmp::Reverse(root.checkpoint));
    roots
}

pub fn bytes_at(medium: &Medium, block: Block, at: usize, len: usize) -> Vec<u8> {
    let blocks = (at + len).div_ceil(BLOCK_SIZE) as u32;
    medium.read_range(BlockRange::new(block, blocks))[at..at + len].to_vec()
}

pub fn directory(medium: &Medium, root: &Root) -> Directory {
    if root.directory_len == 0 {
        return Directory { shard: root.shard, ..Directory::default() };
    }
    let bytes = bytes_at(medium, root.directory, 0, root.directory_len as usize);
    Directory::decode(&bytes, root.shard).expect("a directory")
}

pub fn blobs(medium: &Medium, root: &Root) -> Vec<PartitionBlob> {
    let places = directory(medium, root).partitions;
    let blob = |place: &nvme_format::directory::BlobPlace| {
        let bytes = bytes_at(medium, place.block, usize::from(place.at), place.len as usize);
        PartitionBlob::decode(&bytes).expect("a blob")
    };
    places.iter().map(|(_, place)| blob(place)).collect()
}

/// The shard of a partition and its newest blob.
pub fn blob_of(medium: &Medium, id: PartitionId) -> (ShardId, PartitionBlob) {
    let shards = (0..superblock(medium).map.shards).map(ShardId);
    let found = shards.flat_map(|shard| {
        let root = roots(medium, shard).into_iter().next();
        root.into_iter().flat_map(move |root| blobs(medium, &root)).map(move |blob| (shard, blob))
    });
    found.into_iter().find(|(_, blob)| blob.id == id).expect("it is in a checkpoint")
}

/// All commits of this generation in a lane's ring, by position.
pub fn commits(medium: &Medium, lane: LaneId) -> Vec<CommitHeader> {
    let superblock = superblock(medium);
    let ring = superblock.map.ring(lane);
    let mut found = Vec::new();
    for block in 0..superblock.map.ring_blocks {
        let bytes = medium.read_range(BlockRange::new(Block(ring.0 + block), 1));
        if let Ok((header, _)) = CommitHeader::decode(&bytes)
            && header.generation == superblock.generation
        {
            found.push(header);
        }
    }
    found.sort_by_key(|header| header.sequence);
    found
}

pub fn block_of(medium: &Medium, header: &CommitHeader) -> u64 {
    let map = superblock(medium).map;
    map.ring(header.lane).0 + header.position % map.ring_blocks
}

pub fn passing_time() -> impl FnMut() -> Now {
    let mut now = START;
    move || {
        now.monotonic = now.monotonic + std::time::Duration::from_micros(200);
        now
    }
}

/// Takes the loss on a copy, and checks that the rest is as before.
pub fn repaired(medium: &Medium) -> (RepairReport, Medium) {
    let before = checked(medium);
    let planned = plan_repair(medium.clone(), RepairOptions::default()).expect("a plan");
    assert!(!planned.accepted);
    let disk = disk_of(medium);
    let done = repair_device(&mut disk.open(), &mut passing_time(), &planned, 99).expect("repaired");
    assert_eq!(done.losses, planned.losses);
    assert!(done.accepted && done.audit.len() > done.losses.len());
    let after = disk.seen();
    let (report, opened) = agreed(&after);
    assert!(report.suspects.is_empty() && report.prediction.clean, "{report}");
    let mut node = opened.expect("it opens");
    for suspect in &before.suspects {
        let (id, _, end, _) =
            node.state().into_iter().find(|(id, ..)| id.to_string() == suspect.partition).expect("it is kept");
        assert_eq!(end.0, suspect.end);
        let (core, slot) = node.find(id);
        let bytes = batch(&mut Random::from_seed(4), 1, 500, node.now.wall);
        assert_eq!(node.append(core, slot, &bytes, 50).expect("it takes appends again").first, end);
    }
    (done, after)
}

/// Rewrites a shard's newest checkpoint so that one partition's blob says something else, all checksums holding.
pub fn forge(medium: &mut Medium, shard: ShardId, id: PartitionId, change: impl FnOnce(&mut PartitionBlob)) {
    let root = roots(medium, shard)[0];
    let mut directory = directory(medium, &root);
    let entry = directory.partitions.iter_mut().find(|(other, _)| *other == id).expect("it is there");
    let (at, len) = (usize::from(entry.1.at), entry.1.len as usize);
    let mut blob = PartitionBlob::decode(&bytes_at(medium, entry.1.block, at, len)).expect("a blob");
    change(&mut blob);
    let bytes = blob.encode();
    assert_eq!(bytes.len(), len, "the forged blob takes the same room");
    entry.1.crc = crc::crc32c(&bytes);
    let start = entry.1.block;
    let mut blocks = medium.read_range(BlockRange::new(start, (at + len).div_ceil(BLOCK_SIZE) as u32));
    blocks[at..at + len].copy_from_slice(&bytes);
    medium.write(start, &blocks);
    write_directory(medium, root, &directory);
}

/// The same for what a checkpoint's directory says.
pub fn forge_directory(medium: &mut Medium, root: Root, change: impl FnOnce(&mut Directory)) {
    let mut directory = directory(medium, &root);
    change(&mut directory);
    write_directory(medium, root, &directory);
}

fn write_directory(medium: &mut Medium, mut root: Root, directory: &Directory) {
    let mut bytes = directory.encode();
    root.directory_crc = crc::crc32c(&bytes);
    root.directory_len = bytes.len() as u32;
    bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
    medium.write(root.directory, &bytes);
    let place = superblock(medium).map.root(root.shard, usize::from(root.slot));
    medium.write(place, &root.encode());
}
