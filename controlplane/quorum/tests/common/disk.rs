//! A disk in memory that forgets what was not synced: on a power cut, any subset of unsynced writes survives, torn at any
//! byte, and any subset of unsynced changes of the folders.

use base::Random;
use bytes::Bytes;
use pollux_quorum::{DiskRead, FileName, Folder, Source, Step};
use std::collections::BTreeMap;
use std::io;

#[derive(Clone, Debug)]
enum Change {
    Write { position: u64, bytes: Bytes },
    Length(u64),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Entry {
    Link(FileName, usize),
    Unlink(FileName),
    Rename(FileName, FileName, usize),
}

#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    inodes: Vec<Inode>,
    names: BTreeMap<FileName, usize>,
    durable_names: BTreeMap<FileName, usize>,
    unsynced: Vec<(Folder, Entry)>,
    pub syncs: u64,
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { position, bytes } => {
            let end = *position as usize + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[*position as usize..end].copy_from_slice(bytes);
        }
        Change::Length(length) => content.resize(*length as usize, 0),
    }
}

fn apply_entry(names: &mut BTreeMap<FileName, usize>, entry: &Entry) {
    match entry {
        Entry::Link(file, inode) => {
            names.insert(*file, *inode);
        }
        Entry::Unlink(file) => {
            names.remove(file);
        }
        Entry::Rename(from, to, inode) => {
            names.remove(from);
            names.insert(*to, *inode);
        }
    }
}

impl SimDisk {
    fn inode(&mut self, file: FileName) -> &mut Inode {
        let inode = *self.names.get(&file).unwrap_or_else(|| panic!("{file} is not there"));
        &mut self.inodes[inode]
    }

    fn entry(&mut self, folder: Folder, entry: Entry) {
        apply_entry(&mut self.names, &entry);
        self.unsynced.push((folder, entry));
    }

    fn change(&mut self, file: FileName, change: Change) {
        let inode = self.inode(file);
        apply(&mut inode.current, &change);
        inode.unsynced.push(change);
    }

    pub fn step(&mut self, step: &Step) {
        match step {
            Step::CreateFolder => (),
            Step::Create(file) if self.names.contains_key(file) => self.change(*file, Change::Length(0)),
            Step::Create(file) => {
                self.inodes.push(Inode::default());
                self.entry(file.folder(), Entry::Link(*file, self.inodes.len() - 1));
            }
            Step::Write { file, position, bytes } => {
                assert!(*position <= self.inode(*file).current.len() as u64, "a write of {file} leaves a hole");
                self.change(*file, Change::Write { position: *position, bytes: bytes.clone() });
            }
            Step::Truncate { file, length } => self.change(*file, Change::Length(*length)),
            Step::Sync(file) => {
                self.syncs += 1;
                let inode = self.inode(*file);
                inode.durable = inode.current.clone();
                inode.unsynced.clear();
            }
            Step::Rename { from, to } => {
                let inode = self.names[from];
                self.entry(to.folder(), Entry::Rename(*from, *to, inode));
            }
            Step::Remove(file) => {
                if self.names.contains_key(file) {
                    self.entry(file.folder(), Entry::Unlink(*file));
                }
            }
            Step::SyncFolder(folder) => {
                for (_, entry) in self.unsynced.extract_if(.., |(f, _)| f == folder) {
                    apply_entry(&mut self.durable_names, &entry);
                }
            }
        }
    }

    /// What is there after the power came back.
    pub fn cut_power(&mut self, random: &mut Random) {
        for inode in &mut self.inodes {
            let mut content = std::mem::take(&mut inode.durable);
            for mut change in std::mem::take(&mut inode.unsynced) {
                match &mut change {
                    _ if random.chance(1, 3) => continue,
                    Change::Write { bytes, .. } if random.chance(1, 3) => {
                        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
                    }
                    Change::Write { .. } | Change::Length(_) => (),
                }
                // A write whose predecessors were lost leaves zeros before it.
                apply(&mut content, &change);
            }
            inode.current = content.clone();
            inode.durable = content;
        }
        for (_, entry) in std::mem::take(&mut self.unsynced) {
            if random.chance(1, 2) {
                apply_entry(&mut self.durable_names, &entry);
            }
        }
        self.names = self.durable_names.clone();
    }

    pub fn read_now(&self, read: &DiskRead) -> Result<Bytes, String> {
        self.read(read.file, read.position, read.length as usize).map(Bytes::from).map_err(|e| e.to_string())
    }

    pub fn content(&self, file: FileName) -> Option<&[u8]> {
        self.names.get(&file).map(|inode| &self.inodes[*inode].current[..])
    }

    pub fn set_content(&mut self, file: FileName, content: Vec<u8>) {
        let inode = self.inode(file);
        inode.durable = content.clone();
        inode.current = content;
        inode.unsynced.clear();
    }

    pub fn files(&self) -> Vec<FileName> {
        self.names.keys().copied().collect()
    }
}

impl Source for SimDisk {
    fn list(&self) -> io::Result<Vec<(FileName, u64)>> {
        Ok(self.names.iter().map(|(file, inode)| (*file, self.inodes[*inode].current.len() as u64)).collect())
    }

    fn read(&self, file: FileName, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let content = self.content(file).ok_or_else(|| io::Error::other(format!("{file} is not there")))?;
        let from = (position as usize).min(content.len());
        Ok(content[from..(from + length).min(content.len())].to_vec())
    }
}
