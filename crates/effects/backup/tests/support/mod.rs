//! Stores in scratch folders, and what is read from them.

use std::path::{Path, PathBuf};

use quorate_backup::catalog::Catalog;
use quorate_backup::convert::{self, Converted};
use quorate_backup::session::{Proven, Session, Wanted};
use quorate_backup::store::Store;
use quorate_etcd_formats::delta::{Events, OwnedEvent};
use quorate_faults::Fault;
use quorate_testkit::fixtures_root;
use tempfile::TempDir;

/// A scratch copy of the store that the real tool wrote.
pub(crate) fn gardener_store() -> TempDir {
    let dir = TempDir::new().expect("a scratch folder");
    copy(&fixtures_root().join("gardener-store-small/store"), dir.path());
    dir
}

/// The same in our layout.
pub(crate) fn own_store() -> TempDir {
    let (from, to) = (gardener_store(), TempDir::new().expect("a scratch folder"));
    let source = Store::open(&url(from.path()), false).expect("the store opens");
    let target = Store::open(&url(to.path()), true).expect("the store opens");
    let catalog = Catalog::read(&source).expect("the store is listed");
    for index in 0..catalog.objects.len() {
        let converted = convert::object(&source, &catalog, index, &target, 1, to.path()).expect("it converts");
        assert!(matches!(converted, Converted::Written(_)));
    }
    to
}

pub(crate) fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&target).expect("a folder");
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

/// All files below, by path.
pub(crate) fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// What a store gives: the full's revision and SHA-256, and the writes behind it.
pub(crate) struct Read {
    pub(crate) base_revision: u64,
    pub(crate) base_sha256: [u8; 32],
    pub(crate) events: Vec<OwnedEvent>,
}

pub(crate) fn read(store: &Path, wanted: &Wanted) -> Result<(Proven<Read>, Session), Fault> {
    let mut session = Session::open(&url(store), &std::env::temp_dir())?;
    let proven = session.run(wanted, |base, events, _| {
        let mut all = Vec::new();
        while let Ok(Some(event)) = events.next() {
            all.push(OwnedEvent::of(&event));
        }
        Ok(Read { base_revision: base.revision(), base_sha256: base.content_sha256, events: all })
    })?;
    Ok((proven, session))
}
