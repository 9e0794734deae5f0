//! What GlusterD 2 left on a node: no bytes make the readers panic, and what is read makes a file that can be judged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::peering::{GlusterdPlaces, Imported, Mode, glusterd_text, read_glusterd};
use quorate_plan::spec::Spec;

fuzz_target!(|data: &[u8]| {
    for read in [read_glusterd(None, Some(data)), read_glusterd(Some(data), Some(data))] {
        let Ok(Imported { mode: Mode::Server { members, .. } | Mode::Client { members, .. }, .. }) = read else {
            continue;
        };
        let (data_dir, state_dir) = ("/d".to_owned(), "/s".to_owned());
        let places = GlusterdPlaces { data_dir, state_dir, etcd_binary: None, box_level: None };
        let _ = Spec::parse(glusterd_text(&members, &places).as_bytes(), "fuzz");
    }
});
