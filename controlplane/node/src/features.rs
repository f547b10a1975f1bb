//! Which feature levels this node can run, and which a new cluster starts with: a level is finalized only where the APIs
//! it stands for are served.

use image::{FEATURE_ELR, FEATURE_KRAFT, FeatureRange, MetadataVersion};
use std::collections::BTreeMap;

const KRAFT_MAX: i16 = 1;
const ELR_MAX: i16 = 1;

/// Features whose APIs this node serves; what is not named here it runs at level 0 only.
pub fn supported_features() -> BTreeMap<String, FeatureRange> {
    let (min, max) = (MetadataVersion::MINIMUM.0, MetadataVersion::LATEST.0);
    BTreeMap::from([
        (MetadataVersion::FEATURE.to_owned(), FeatureRange { min, max }),
        (FEATURE_KRAFT.to_owned(), FeatureRange { min: 0, max: KRAFT_MAX }),
        (FEATURE_ELR.to_owned(), FeatureRange { min: 0, max: ELR_MAX }),
    ])
}

/// The levels of a new cluster beside metadata.version; kraft.version lies in the quorum's own records.
pub fn bootstrap_features() -> BTreeMap<String, i16> {
    BTreeMap::from([(FEATURE_ELR.to_owned(), ELR_MAX)])
}
