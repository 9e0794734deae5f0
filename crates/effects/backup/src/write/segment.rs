//! A segment of the spool as an object of the store.
//!
//! **Rule:** the object's name is a function of the segment, so a repeated upload finds its object instead of making a
//! second one; and what is uploaded was found whole on the way, by its own checksums.

use std::fs::File;
use std::io::Read;

use quorate_etcd_formats::delta::gardener::GardenerWriter;
use quorate_etcd_formats::delta::quorate::{Kind, Manifest, Name, QuorateDecoder};
use quorate_etcd_formats::delta::{Batch, Decoder, Summary};
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;

use super::object::{Missed, Outgoing};
use super::{About, manifest, put_manifest};
use crate::spool::Segment;
use crate::store::Store;

/// Bytes that are read at once; the same each time, so that the same segment is compressed into the same bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Puts a segment into the store. `about` says which member was read; cluster, epoch and moment are the segment's own.
/// If it is there already, that is found out and nothing is changed.
pub fn segment(store: &Store, about: &About, segment: &Segment, layout: Layout) -> Result<Manifest> {
    let name = segment_name(segment, layout);
    match put(store, about, segment, layout, &name) {
        Ok(manifest) => return Ok(manifest),
        Err(Missed::Fault(fault)) => return Err(fault),
        // Only an earlier attempt of this very spool can have left it: the name carries our epoch.
        Err(Missed::Damaged) => store.withdraw(&name)?,
    }
    put(store, about, segment, layout, &name).map_err(|missed| match missed {
        Missed::Fault(fault) => fault,
        Missed::Damaged => {
            let attempt = format!("cannot write `{name}` in `{}`: it comes back damaged", store.url());
            Fault::new(Code::ObjectDamaged, attempt)
                .hint("the segment stays in the spool; see what is wrong with the store")
        }
    })
}

/// The name of a segment's object.
pub fn segment_name(segment: &Segment, layout: Layout) -> String {
    match layout {
        Layout::Quorate => name_of(segment).object(),
        Layout::Gardener => {
            let seconds = segment.created_ms.div_euclid(1000);
            format!("v2/Incr-{:08}-{:08}-{seconds}.gz", segment.first, segment.last)
        }
    }
}

fn name_of(segment: &Segment) -> Name {
    let Segment { first, last, epoch, created_ms, .. } = *segment;
    Name { first: Some(first), last, epoch, created_ms }
}

fn put(
    store: &Store,
    about: &About,
    segment: &Segment,
    layout: Layout,
    name: &str,
) -> std::result::Result<Manifest, Missed> {
    let mut object = Outgoing::begin(store, name)?;
    if let Err(fault) = copy(segment, layout, &mut object) {
        object.abandon();
        return Err(fault.into());
    }
    let arrived = object.finish()?;
    let mut about = About { epoch: segment.epoch, created_ms: segment.created_ms, ..about.clone() };
    about.origin.cluster_id = segment.cluster_id;
    let range = (segment.first, segment.last);
    let manifest = manifest(Kind::Delta, &about, range, segment.events, arrived, segment.last_write_ms);
    if layout == Layout::Quorate {
        put_manifest(store, &name_of(segment), &manifest)?;
    }
    Ok(manifest)
}

/// Streams the segment into the object and proves it on the way.
fn copy(segment: &Segment, layout: Layout, object: &mut Outgoing<'_>) -> Result<()> {
    let shown = segment.path.display();
    let unreadable = |error| Fault::io(format!("cannot read `{shown}`"), error);
    let damaged = |why: &dyn std::fmt::Display| {
        Fault::new(Code::SpoolDamaged, format!("cannot upload `{shown}`: {why}"))
            .hint("it is set aside, and etcd is asked for its revisions again")
    };
    let mut file = File::open(&segment.path).map_err(unreadable)?;
    let mut decoder = QuorateDecoder::default();
    let mut foreign = (layout == Layout::Gardener).then(GardenerWriter::default);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = fill(&mut file, &mut piece).map_err(unreadable)?;
        if length == 0 {
            break;
        }
        decoder.feed(&piece[..length]).map_err(|error| damaged(&error))?;
        match &mut foreign {
            None => object.write(&piece[..length])?,
            Some(writer) => drain(&mut decoder, writer, object)?,
        }
        while decoder.take(1).is_some() {}
    }
    let (rest, summary) = decoder.finish().map_err(|error| damaged(&error))?;
    let Segment { first, last, events, .. } = *segment;
    if summary != Some(Summary { first, last, events }) {
        return Err(damaged(&"it holds other writes than when it was sealed"));
    }
    if let Some(mut writer) = foreign {
        translate(&rest, &mut writer)?;
        writer.finish();
        object.write(&writer.out)?;
    }
    Ok(())
}

fn drain(decoder: &mut QuorateDecoder, writer: &mut GardenerWriter, object: &mut Outgoing<'_>) -> Result<()> {
    while let Some(batch) = decoder.take(1) {
        translate(&batch, writer)?;
        object.write(&writer.out)?;
        writer.out.clear();
    }
    Ok(())
}

fn translate(batch: &Batch, writer: &mut GardenerWriter) -> Result<()> {
    (0..batch.len()).filter_map(|index| batch.get(index)).try_for_each(|event| {
        let pushed = writer.push(&event);
        pushed.map_err(|disorder| Fault::new(Code::Internal, "cannot write a delta out of order").caused_by(disorder))
    })
}

/// Reads until the piece is full or the file ends.
fn fill(file: &mut File, piece: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match file.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
