//! Who owns which place: no slab has two shards, no block two extents.

use crate::blobs::{DirectoryImage, Part};
use crate::report::{Finding, Severity};
use base::ShardId;
use nvme_format::region::RegionMap;
use nvme_format::{ExtentAddress, SlabId};
use std::collections::{BTreeMap, BTreeSet};

/// An extent and who says it is theirs.
struct Claim {
    extent: ExtentAddress,
    shard: ShardId,
    owner: String,
}

/// Slabs that two shards claim in their checkpoints, though the journal knows of no change of owner: an opening would
/// give the places of one to the other. `moved` are the slabs whose taking or release the journal names.
pub(crate) fn contested_slabs<'a>(
    map: RegionMap,
    shards: impl Iterator<Item = (ShardId, &'a DirectoryImage)>,
    moved: &BTreeSet<SlabId>,
) -> Vec<Finding> {
    let mut claims: BTreeMap<SlabId, BTreeSet<ShardId>> = BTreeMap::new();
    for (shard, image) in shards {
        let Part::Good(directory) = &image.directory else { continue };
        let data = image.partitions().flat_map(|blob| blob.extents.iter().map(|extent| extent.address));
        let used = data.chain(directory.storage.iter().copied()).filter_map(|extent| map.slab_of(extent.start));
        for slab in directory.slabs.iter().copied().chain(used) {
            claims.entry(slab).or_default().insert(shard);
        }
    }
    let contested = claims.into_iter().filter(|(slab, owners)| owners.len() > 1 && !moved.contains(slab));
    let say = |(slab, owners): (SlabId, BTreeSet<ShardId>)| {
        let owners: Vec<String> = owners.iter().map(ShardId::to_string).collect();
        let text = format!(
            "slab {slab} is claimed by the shards {}: an opening would write over what one of them has there",
            owners.join(" and ")
        );
        Finding::new(Severity::Damage, "two owners", text)
    };
    contested.map(say).collect()
}

/// Looks for places with two owners, and for extents where none can be. `blocks` is the namespace's size.
pub(crate) fn check<'a>(
    map: RegionMap,
    blocks: u64,
    shards: impl Iterator<Item = (ShardId, &'a DirectoryImage)>,
    findings: &mut Vec<Finding>,
) {
    let mut slabs: BTreeMap<SlabId, ShardId> = BTreeMap::new();
    let mut claims: Vec<Claim> = Vec::new();
    for (shard, image) in shards {
        let Part::Good(directory) = &image.directory else { continue };
        for slab in &directory.slabs {
            if let Some(other) = slabs.insert(*slab, shard) {
                let text = format!("it belongs to shard {other} and to shard {shard}");
                findings.push(Finding::new(Severity::Damage, format!("slab {slab}"), text));
            }
        }
        let storage = directory.storage.iter().map(|extent| (*extent, format!("the checkpoint of shard {shard}")));
        let data = image
            .partitions()
            .flat_map(|blob| blob.extents.iter().map(|extent| (extent.address, format!("partition {}", blob.id))));
        claims.extend(storage.chain(data).map(|(extent, owner)| Claim { extent, shard, owner }));
    }
    for claim in &claims {
        check_place(map, blocks, &slabs, claim, findings);
    }
    claims.sort_by_key(|claim| claim.extent.start);
    for (number, claim) in claims.iter().enumerate() {
        let overlapping = claims[number + 1..].iter().take_while(|next| next.extent.start < claim.extent.whole().end());
        for next in overlapping {
            let text = format!(
                "{} belongs to {}, and {} to {}",
                claim.extent.whole(),
                claim.owner,
                next.extent.whole(),
                next.owner
            );
            findings.push(Finding::new(Severity::Damage, "two owners", text));
        }
    }
}

fn check_place(
    map: RegionMap,
    blocks: u64,
    slabs: &BTreeMap<SlabId, ShardId>,
    claim: &Claim,
    findings: &mut Vec<Finding>,
) {
    let range = claim.extent.whole();
    let slab = map.slab_of(claim.extent.start);
    let last = map.slab_of(base::Block(range.end().0 - 1));
    let mut say = |text: String| {
        findings.push(Finding::new(Severity::Damage, claim.owner.clone(), format!("its extent at {range} {text}")));
    };
    match (slab, last) {
        (Some(slab), Some(last)) if slab == last && range.end().0 <= blocks => match slabs.get(&slab) {
            Some(owner) if *owner == claim.shard => {}
            Some(owner) => say(format!("lies in slab {slab} of shard {owner}, not in one of shard {}", claim.shard)),
            None => say(format!("lies in slab {slab}, which nobody owns")),
        },
        _ => say("lies in no slab".into()),
    }
    if range.overlaps(map.hole()) {
        say("covers copies of the superblock".into());
    }
}
