//! The executor of jobs and reads on a file system: blocking, for a thread of its own a lane. The daemon runs it; the
//! quorum never does.

use crate::disk::{DiskJob, DiskRead, FileName, Folder, PARTITION_FOLDER, Source, Step};
use crate::quorum::{DiskFailed, Event};
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many files stay open between jobs: the active segment's three, and a snapshot.
const OPEN_MAX: usize = 8;
/// A process's number has no more digits; what another program wrote may be anything.
const HOLDER_MAX: u64 = 16;

/// A control plane's directory.
#[derive(Debug)]
pub struct Files {
    root: PathBuf,
    open: HashMap<FileName, File>,
    /// Held while this process uses the directory.
    lock: Arc<File>,
}

impl Files {
    /// Takes the directory, making it if need be. Fails while another process has it, and names that process, which wrote
    /// its number into the file that it locked.
    pub fn open(root: &Path) -> io::Result<Files> {
        std::fs::create_dir_all(root)?;
        let lock = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(root.join(".lock"))?;
        if let Err(error) = lock.try_lock() {
            let mut holder = Vec::new();
            (&lock).take(HOLDER_MAX).read_to_end(&mut holder)?;
            let by = String::from_utf8_lossy(&holder)
                .trim()
                .parse::<u32>()
                .map_or_else(|_| String::new(), |pid| format!(" by process {pid}"));
            let text =
                format!("{} is in use{by}: {error}; stop that node, or start on another directory", root.display());
            return Err(io::Error::new(ErrorKind::ResourceBusy, text));
        }
        // The number is for whoever comes in vain; a full file system takes none, and is no reason not to go on.
        let _named = lock.set_len(0).and_then(|()| (&lock).write_all(std::process::id().to_string().as_bytes()));
        Ok(Files { root: root.to_owned(), open: HashMap::new(), lock: Arc::new(lock) })
    }

    /// A second executor on the same directory, so that each lane has one.
    pub fn another(&self) -> Files {
        Files { root: self.root.clone(), open: HashMap::new(), lock: Arc::clone(&self.lock) }
    }

    fn folder(&self, folder: Folder) -> PathBuf {
        match folder {
            Folder::Root => self.root.clone(),
            Folder::Partition => self.root.join(PARTITION_FOLDER),
        }
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.folder(file.folder()).join(file.to_string())
    }

    /// Runs a job to its end or its first failure.
    pub fn run(&mut self, job: DiskJob) -> Event {
        let result = self.run_steps(&job.steps);
        Event::DiskDone { ticket: job.ticket, result }
    }

    pub fn run_steps(&mut self, steps: &[Step]) -> Result<(), DiskFailed> {
        for step in steps {
            self.step(step).map_err(|error| DiskFailed(self.told(step, &error)))?;
        }
        Ok(())
    }

    fn told(&self, step: &Step, error: &io::Error) -> String {
        let what = describe(step);
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                format!("{what}: {error}; make room on the file system of {}", self.root.display())
            }
            _ => format!("{what}: {error}"),
        }
    }

    pub fn read(&self, read: DiskRead) -> Event {
        let result = read_at(&self.path(read.file), read.position, read.length as usize);
        let result = result.map(Bytes::from).map_err(|error| DiskFailed(format!("reading {}: {error}", read.file)));
        Event::ReadDone { ticket: read.ticket, result }
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::CreateFolder => std::fs::create_dir_all(self.folder(Folder::Partition)),
            Step::Create(file) => {
                self.open.remove(file);
                self.handle(*file, true)?.set_len(0)
            }
            Step::Write { file, position, bytes } => self.handle(*file, false)?.write_all_at(bytes, *position),
            Step::Truncate { file, length } => self.handle(*file, false)?.set_len(*length),
            Step::Sync(file) => self.handle(*file, false)?.sync_all(),
            Step::Rename { from, to } => {
                self.open.remove(from);
                self.open.remove(to);
                std::fs::rename(self.path(*from), self.path(*to))
            }
            Step::Remove(file) => {
                self.open.remove(file);
                match std::fs::remove_file(self.path(*file)) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    other => other,
                }
            }
            Step::SyncFolder(folder) => File::open(self.folder(*folder))?.sync_all(),
        }
    }

    fn handle(&mut self, file: FileName, create: bool) -> io::Result<&File> {
        if !self.open.contains_key(&file) {
            if self.open.len() >= OPEN_MAX {
                self.open.clear();
            }
            let handle = OpenOptions::new().write(true).create(create).open(self.path(file))?;
            self.open.insert(file, handle);
        }
        Ok(&self.open[&file])
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::CreateFolder => format!("making {PARTITION_FOLDER}"),
        Step::Create(file) => format!("creating {file}"),
        Step::Write { file, position, .. } => format!("writing {file} at {position}"),
        Step::Truncate { file, length } => format!("cutting {file} to {length}"),
        Step::Sync(file) => format!("syncing {file}"),
        Step::Rename { from, to } => format!("renaming {from} to {to}"),
        Step::Remove(file) => format!("removing {file}"),
        Step::SyncFolder(folder) => format!("syncing the folder ({folder:?})"),
    }
}

fn read_at(path: &Path, position: u64, length: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let there = file.metadata()?.len().saturating_sub(position);
    let mut bytes = vec![0; usize::try_from(there).unwrap_or(usize::MAX).min(length)];
    file.read_exact_at(&mut bytes, position)?;
    Ok(bytes)
}

impl Source for Files {
    fn list(&self) -> io::Result<Vec<(FileName, u64)>> {
        let mut found = Vec::new();
        for folder in [Folder::Root, Folder::Partition] {
            let entries = match std::fs::read_dir(self.folder(folder)) {
                Ok(entries) => entries,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name();
                if let Some(file) = name.to_str().and_then(|name| FileName::parse(folder, name)) {
                    found.push((file, entry.metadata()?.len()));
                }
            }
        }
        Ok(found)
    }

    fn read(&self, file: FileName, position: u64, length: usize) -> io::Result<Vec<u8>> {
        read_at(&self.path(file), position, length)
    }
}
