//! The control plane's directory in memory. Everything is durable at once: power cuts are the quorum's tests.

use bytes::Bytes;
use pollux_node::{DiskWork, Event};
use quorum::files::Files;
use quorum::{DiskRead, FileName, Folder, PARTITION_FOLDER, Source, Step};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    files: BTreeMap<FileName, Vec<u8>>,
    pub run_file: Option<Bytes>,
    pub fails: bool,
}

impl MemoryDisk {
    pub fn step(&mut self, step: &Step) {
        match step {
            Step::CreateFolder | Step::Sync(_) | Step::SyncFolder(_) => {}
            Step::Create(file) => {
                self.files.insert(*file, Vec::new());
            }
            Step::Write { file, position, bytes } => {
                let content = self.files.get_mut(file).expect("written files are there");
                let from = *position as usize;
                assert!(from <= content.len(), "a write leaves a hole");
                content.truncate(content.len().max(from));
                content.resize(content.len().max(from + bytes.len()), 0);
                content[from..from + bytes.len()].copy_from_slice(bytes);
            }
            Step::Truncate { file, length } => {
                self.files.get_mut(file).expect("cut files are there").resize(*length as usize, 0);
            }
            Step::Rename { from, to } => {
                let content = self.files.remove(from).expect("renamed files are there");
                self.files.insert(*to, content);
            }
            Step::Remove(file) => {
                self.files.remove(file);
            }
        }
    }

    pub fn run(&mut self, work: DiskWork) -> Event {
        match work {
            DiskWork::StoreRun(_) if self.fails => Event::RunStored(Err("no space".to_owned())),
            DiskWork::StoreRun(content) => {
                self.run_file = Some(content);
                Event::RunStored(Ok(()))
            }
            DiskWork::Job(job) if self.fails => {
                let result = Err(quorum::DiskFailed("no space".to_owned()));
                Event::Quorum(quorum::Event::DiskDone { ticket: job.ticket, result })
            }
            DiskWork::Job(job) => {
                job.steps.iter().for_each(|step| self.step(step));
                Event::Quorum(quorum::Event::DiskDone { ticket: job.ticket, result: Ok(()) })
            }
            DiskWork::Read(DiskRead { ticket, file, position, length }) => {
                let bytes = self.read(file, position, length as usize).map(Bytes::from);
                let result = bytes.map_err(|error| quorum::DiskFailed(error.to_string()));
                Event::Quorum(quorum::Event::ReadDone { ticket, result })
            }
        }
    }
}

impl Source for MemoryDisk {
    fn list(&self) -> io::Result<Vec<(FileName, u64)>> {
        Ok(self.files.iter().map(|(file, content)| (*file, content.len() as u64)).collect())
    }

    fn read(&self, file: FileName, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let content = self.files.get(&file).ok_or_else(|| io::Error::other(format!("{file} is not there")))?;
        let from = (position as usize).min(content.len());
        Ok(content[from..(from + length).min(content.len())].to_vec())
    }
}

impl MemoryDisk {
    /// A directory's files as they are.
    pub fn read_from(path: &Path) -> MemoryDisk {
        let files = Files::open(path).expect("a directory");
        let list = files.list().expect("its files");
        let read =
            |(file, size): (FileName, u64)| (file, Source::read(&files, file, 0, size as usize).expect("a file"));
        MemoryDisk { files: list.into_iter().map(read).collect(), ..MemoryDisk::default() }
    }

    /// Makes a directory of these files.
    pub fn write_to(&self, path: &Path) {
        for (file, content) in &self.files {
            let folder = match file.folder() {
                Folder::Root => path.to_owned(),
                Folder::Partition => path.join(PARTITION_FOLDER),
            };
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join(file.to_string()), content).expect("a file");
        }
    }

    pub fn names(&self) -> impl Iterator<Item = String> {
        self.files.keys().map(FileName::to_string)
    }
}
