//! A checkpoint's directory and the blobs it names.

use crate::source::{self, Source};
use base::{BLOCK_SIZE, PartitionId};
use nvme_format::blob::PartitionBlob;
use nvme_format::directory::{BlobPlace, Directory};
use nvme_format::root::Root;
use nvme_format::{Malformed, crc};

/// Something whose bytes a checksum elsewhere vouches for.
#[derive(Clone, Debug)]
pub(crate) enum Part<T> {
    Good(T),
    /// Why it is not.
    Bad(String),
}

pub(crate) struct DirectoryImage {
    pub directory: Part<Directory>,
    /// By the directory's order.
    pub blobs: Vec<(PartitionId, BlobPlace, Part<PartitionBlob>)>,
    /// Bytes of the saved view.
    pub view: Option<Part<usize>>,
}

impl DirectoryImage {
    pub fn is_whole(&self) -> bool {
        matches!(self.directory, Part::Good(_))
            && self.blobs.iter().all(|(_, _, blob)| matches!(blob, Part::Good(_)))
            && !matches!(self.view, Some(Part::Bad(_)))
    }

    pub fn partitions(&self) -> impl Iterator<Item = &PartitionBlob> {
        self.blobs.iter().filter_map(|(_, _, blob)| match blob {
            Part::Good(blob) => Some(blob),
            Part::Bad(_) => None,
        })
    }
}

pub(crate) fn load<S: Source + ?Sized>(source: &mut S, root: &Root) -> DirectoryImage {
    let directory = load_directory(source, root);
    let (mut blobs, mut view) = (Vec::new(), None);
    if let Part::Good(directory) = &directory {
        for (id, place) in &directory.partitions {
            let blob = checked(source, place).and_then(|bytes| decode_blob(&bytes, *id));
            blobs.push((*id, *place, blob.map_or_else(Part::Bad, Part::Good)));
        }
        view = directory.view.map(|view| match checked(source, &view.place) {
            Ok(bytes) => Part::Good(bytes.len()),
            Err(why) => Part::Bad(why),
        });
    }
    DirectoryImage { directory, blobs, view }
}

fn load_directory<S: Source + ?Sized>(source: &mut S, root: &Root) -> Part<Directory> {
    if root.directory_len == 0 {
        return Part::Good(Directory { shard: root.shard, ..Directory::default() });
    }
    let blocks = u64::from(root.directory_len).div_ceil(BLOCK_SIZE as u64);
    let bytes = match source::read(source, root.directory, blocks) {
        Ok(bytes) => bytes,
        Err(unread) => return Part::Bad(unread.to_string()),
    };
    let bytes = &bytes[..root.directory_len as usize];
    if crc::crc32c(bytes) != root.directory_crc {
        return Part::Bad("its checksum does not hold".into());
    }
    match Directory::decode(bytes, root.shard) {
        Ok(directory) => Part::Good(directory),
        Err(Malformed) => Part::Bad("it is no directory of this shard".into()),
    }
}

fn checked<S: Source + ?Sized>(source: &mut S, place: &BlobPlace) -> Result<Vec<u8>, String> {
    let bytes = source::read_bytes(source, place.block, u64::from(place.at), u64::from(place.len));
    let bytes = bytes.map_err(|unread| unread.to_string())?;
    if crc::crc32c(&bytes) == place.crc { Ok(bytes) } else { Err("its checksum does not hold".into()) }
}

fn decode_blob(bytes: &[u8], id: PartitionId) -> Result<PartitionBlob, String> {
    match PartitionBlob::decode(bytes) {
        Ok(blob) if blob.id == id => Ok(blob),
        Ok(blob) => Err(format!("it is the blob of {}", blob.id)),
        Err(Malformed) => Err("it is no partition's blob".into()),
    }
}
