//! `static:n1=https://10.0.0.1:2380,n2=…`: the list itself, in etcd's `--initial-cluster` syntax.

use quorate_plan::roster::parse_initial_cluster;

use super::{Asked, Source};

const PROVENANCE: &str = "static:";

/// A list that is its own source.
pub(super) struct Static {
    text: String,
}

impl Static {
    pub(super) fn open(text: &str) -> Static {
        Static { text: text.to_owned() }
    }
}

impl Source for Static {
    fn provenance(&self) -> &str {
        PROVENANCE
    }

    fn ask(&self) -> Asked<'_> {
        Box::pin(async { Ok(parse_initial_cluster(&self.text, PROVENANCE)?.into()) })
    }

    fn settled(&self) -> bool {
        true
    }
}
