//! Makes two stores of the same history, one in each layout, to measure restores on:
//! `make_store FULL FOLDER EVENTS` takes a small Gardener full and writes `FOLDER/gardener` and `FOLDER/quorate`.

#![expect(clippy::unwrap_used, reason = "a tool for measurements; what goes wrong ends it")]

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use quorate_backup::catalog::Catalog;
use quorate_backup::convert;
use quorate_backup::store::Store;
use sha2::{Digest, Sha256};

/// Writes per delta: some 10 MiB of JSON, where etcd-backup-restore cuts by default.
const PER_DELTA: u64 = 25_000;

/// Keys that are written in turn.
const KEYS: u64 = 100_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, full, folder, events] = args.as_slice() else { panic!("make_store FULL FOLDER EVENTS") };
    let (folder, events) = (Path::new(folder), events.parse::<u64>().unwrap());
    let name = Path::new(full).file_name().unwrap();
    let base: u64 = name.to_str().unwrap().split('-').nth(2).unwrap().parse().unwrap();
    let v2 = folder.join("gardener/v2");
    std::fs::create_dir_all(&v2).unwrap();
    std::fs::copy(full, v2.join(name)).unwrap();
    let mut first = base + 1;
    while first <= base + events {
        let last = (first + PER_DELTA - 1).min(base + events);
        let path = v2.join(format!("Incr-{first:08}-{last:08}-{}.gz", 1_800_000_000 + last));
        let mut encoder = flate2::write::GzEncoder::new(File::create(path).unwrap(), flate2::Compression::default());
        encoder.write_all(&delta(base, first, last)).unwrap();
        encoder.finish().unwrap();
        first = last + 1;
    }
    let url = |layout: &str| format!("file://{}", std::path::absolute(folder.join(layout)).unwrap().display());
    let (from, to) = (Store::open(&url("gardener"), false).unwrap(), Store::open(&url("quorate"), true).unwrap());
    let catalog = Catalog::read(&from).unwrap();
    for index in 0..catalog.objects.len() {
        convert::object(&from, &catalog, index, &to, 1, folder).unwrap();
    }
}

/// Puts of about 200 bytes on 100,000 keys, as etcd-backup-restore writes them.
fn delta(base: u64, first: u64, last: u64) -> Vec<u8> {
    use base64::Engine;
    let mut text = String::from("[");
    let encode = |bytes: &[u8]| base64::prelude::BASE64_STANDARD.encode(bytes);
    for revision in first..=last {
        let number = (revision - base - 1) % KEYS;
        let create = base + 1 + number;
        let version = (revision - create) / KEYS + 1;
        let key = encode(format!("/registry/things/default/thing-{number:06}").as_bytes());
        // Half of a value is text that repeats, half of it is not.
        let random: Vec<u8> = (0..2u64).flat_map(|part| Sha256::digest((revision + part).to_be_bytes())).collect();
        let value = encode(
            &[
                format!("{{\"kind\":\"Thing\",\"number\":{number:06},\"spec\":\"on\"}}....").as_bytes(),
                &random,
                &[b'.'; 50],
            ]
            .concat(),
        );
        let _ = write!(
            text,
            r#"{{"etcdEvent":{{"kv":{{"key":"{key}","create_revision":{create},"mod_revision":{revision},"version":{version},"value":"{value}"}}}},"time":"2027-01-15T08:{:02}:{:02}.{:09}Z"}},"#,
            revision / 60 % 60,
            revision % 60,
            revision % 1_000_000_000,
        );
    }
    text.pop();
    text.push(']');
    let hash = Sha256::digest(text.as_bytes());
    [text.as_bytes(), hash.as_slice()].concat()
}
