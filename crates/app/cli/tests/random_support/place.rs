//! The store that fails: a bucket behind a proxy for bad days, or a folder that is away now and then.
//!
//! **Rule:** whatever is done to the store, what it has acknowledged stays in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_backup::store::{Patience, Store};
use quorate_testkit::{FaultyS3, S3, Weather, s3};

use super::dice::Dice;
use crate::backup_support::{put, url};

/// Where backups go.
pub(crate) enum Place {
    Bucket { s3: S3, proxy: FaultyS3 },
    Folder { path: PathBuf, away: bool },
}

impl Place {
    pub(crate) fn bucket(seed: u64) -> Place {
        let s3 = s3();
        let proxy = FaultyS3::start(&s3, seed, Weather::Healthy);
        Place::Bucket { s3, proxy }
    }

    pub(crate) fn folder(root: &Path) -> Place {
        let path = root.join("store");
        std::fs::create_dir_all(&path).unwrap();
        Place::Folder { path, away: false }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Place::Bucket { s3, .. } => s3.url("prod"),
            Place::Folder { path, .. } => url(path),
        }
    }

    /// The environment of a client that meets the mishaps.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        match self {
            Place::Bucket { s3, proxy } => s3.env_at(&proxy.endpoint()),
            Place::Folder { .. } => Vec::new(),
        }
    }

    /// Another weather.
    pub(crate) fn change(&mut self, dice: &mut Dice) -> String {
        match self {
            Place::Bucket { proxy, .. } => {
                proxy.set_hang(Duration::from_millis(dice.between(200, 3000)));
                let weather = match dice.weighted(&[40, 45, 15]) {
                    0 => Weather::Healthy,
                    1 => Weather::Flaky(dice.between(5, 45) as u8),
                    _ => Weather::Down,
                };
                proxy.set(weather);
                format!("{weather:?}")
            }
            Place::Folder { .. } => {
                let to = dice.chance(40);
                self.set_away(to);
                if to { "away".to_owned() } else { "there".to_owned() }
            }
        }
    }

    pub(crate) fn heal(&mut self) {
        match self {
            Place::Bucket { proxy, .. } => proxy.set(Weather::Healthy),
            Place::Folder { .. } => self.set_away(false),
        }
    }

    /// Requests and mishaps so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match self {
            Place::Bucket { proxy, .. } => proxy.counts(),
            Place::Folder { .. } => (0, 0),
        }
    }

    /// A file stands where the folder was, so that everything fails and nothing is made in its place.
    #[expect(clippy::disallowed_methods, reason = "scenery in a directory that is thrown away")]
    fn set_away(&mut self, to: bool) {
        let Place::Folder { path, away } = self else { return };
        if *away == to {
            return;
        }
        let aside = path.with_extension("aside");
        if to {
            std::fs::rename(&path, &aside).unwrap();
            put(path, b"the disk is not mounted");
        } else {
            std::fs::remove_file(&path).unwrap();
            std::fs::rename(&aside, &path).unwrap();
        }
        *away = to;
    }

    /// Everything that is in the store now, object by object, in a folder.
    pub(crate) fn mirror(&self, to: &Path) -> String {
        let Place::Bucket { s3, .. } = self else { return self.url() };
        let store = Store::open_in(&self.url(), false, Patience::default(), &s3.env()).unwrap();
        for listed in store.list().unwrap() {
            let mut bytes = Vec::new();
            std::io::copy(&mut store.reader(&listed.name).unwrap(), &mut bytes).unwrap();
            put(&to.join(&listed.name), &bytes);
        }
        url(to)
    }
}
