//! Trials of a restore, remembered in the store itself, so that whoever watches the store knows of the last one.
//!
//! **Rule:** the name says it all, and the object only says it again; nothing that restores ever looks at them.

use quorate_etcd_formats::delta::quorate::ROOT;
use quorate_faults::Result;

use crate::store::Store;

/// Records that are kept.
const KEPT: usize = 10;

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drill {
    /// When it ended, in milliseconds since 1970.
    pub ended_ms: i64,
    /// The revision that was restored.
    pub revision: u64,
    /// Whether etcd ran on it and showed what it should.
    pub good: bool,
}

impl Drill {
    /// Its path below the store's folder.
    pub fn name(&self) -> String {
        let Drill { ended_ms, revision, good } = self;
        format!("{ROOT}/drill/{ended_ms:014}-{revision:020}-{}.txt", if *good { "good" } else { "failed" })
    }

    /// Reads a name, below whatever folder. `None`: it is none of these.
    pub fn parse(name: &str) -> Option<Drill> {
        let stem = name.rsplit_once('/')?.1.strip_suffix(".txt")?;
        let [ended, revision, how] = stem.split('-').collect::<Vec<_>>().try_into().ok()?;
        let drill = Drill { ended_ms: ended.parse().ok()?, revision: revision.parse().ok()?, good: how == "good" };
        name.ends_with(&drill.name()).then_some(drill)
    }
}

/// Remembers one, and forgets those that are long past.
pub fn record(store: &Store, drill: &Drill) -> Result<()> {
    let how = if drill.good { "good" } else { "failed" };
    let text = format!("restored revision {}: {how}\n", drill.revision);
    store.create(&drill.name(), text.into_bytes())?;
    let mut names: Vec<String> = names(store)?;
    names.sort_unstable();
    for old in names.iter().rev().skip(KEPT) {
        // What a store protects stays; it is small.
        let _ = store.delete(old);
    }
    Ok(())
}

/// The last one.
pub fn newest(store: &Store) -> Result<Option<Drill>> {
    Ok(names(store)?.iter().filter_map(|name| Drill::parse(name)).max())
}

fn names(store: &Store) -> Result<Vec<String>> {
    let listed = store.list_under(&format!("{ROOT}/drill"))?;
    Ok(listed.into_iter().map(|listed| listed.name).filter(|name| Drill::parse(name).is_some()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_others_are_not_ours() {
        let drill = Drill { ended_ms: 1_794_785_870_743, revision: 4711, good: false };
        assert_eq!(Drill::parse(&drill.name()), Some(drill));
        assert_eq!(Drill::parse(&format!("below/{}", drill.name())), Some(drill));
        for other in ["", "drill", "quorate-v1/drill/1-2-good.txt", "quorate-v1/full/00000000000001-x-good.txt"] {
            assert_eq!(Drill::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_last_one_is_found_and_few_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("file://{}", dir.path().display()), true).unwrap();
        assert_eq!(newest(&store).unwrap(), None);
        for at in 1..=15 {
            record(&store, &Drill { ended_ms: at, revision: 7, good: at % 2 == 0 }).unwrap();
        }
        assert_eq!(newest(&store).unwrap(), Some(Drill { ended_ms: 15, revision: 7, good: false }));
        assert_eq!(names(&store).unwrap().len(), KEPT);
    }
}
