//! Something an operator should know, though the command goes on.

use quorate_faults::Code;
use serde::Serialize;

/// Worth a look; nothing stops because of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The page that explains it.
    pub code: Code,
    /// Lower case, no full stop, values in backticks.
    pub text: String,
}

impl Warning {
    /// A warning with the page that explains it.
    pub fn new(code: Code, text: impl Into<String>) -> Warning {
        Warning { code, text: text.into() }
    }
}
