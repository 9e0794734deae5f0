//! One observation about examined data.

use serde::Serialize;

use crate::Code;

/// How much a finding matters. Only errors make a check fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing to do.
    Info,
    /// etcd copes, but somebody should look.
    Warning,
    /// Data is damaged, or etcd would fail or lose data on it.
    Error,
}

/// Where something was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file, relative to the examined directory.
    pub file: String,
    /// Byte offset in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Page of the db.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<u64>,
}

impl Place {
    /// The whole file.
    pub fn file(file: impl Into<String>) -> Place {
        Place { file: file.into(), ..Place::default() }
    }

    /// One byte offset in the file.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Place {
        self.offset = Some(offset);
        self
    }

    /// One page of the db.
    #[must_use]
    pub fn page(mut self, page: u64) -> Place {
        self.page = Some(page);
        self
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)?;
        if let Some(page) = self.page {
            write!(f, " page {page}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " offset {offset}")?;
        }
        Ok(())
    }
}

/// One line of a report: what was found, where, how bad it is, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The finding's code.
    pub code: Code,
    /// How much it matters.
    pub severity: Severity,
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What, in lower case, without a full stop.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}
