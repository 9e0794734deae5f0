//! What PostgreSQL says, as a fault.
//!
//! **Invariant:** a fault holds the code and the one line of the server; its details, which quote rows, are left out.

use quorate_faults::{Code, Fault};
use tokio_postgres::error::SqlState;

/// The five characters that say what is wrong, if the server said it.
pub(crate) fn state_of(fault: &Fault) -> Option<String> {
    let mut cause = std::error::Error::source(fault);
    while let Some(error) = cause {
        if let Some(said) = error.downcast_ref::<Said>() {
            return Some(said.state.clone());
        }
        cause = error.source();
    }
    None
}

/// What the server said.
#[derive(Debug)]
struct Said {
    state: String,
    text: String,
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.text, self.state)
    }
}

impl std::error::Error for Said {}

/// The fault of a call to a node.
pub(crate) fn fault_of(node: &str, attempt: &str, error: tokio_postgres::Error) -> Fault {
    let Some(said) = error.as_db_error() else {
        if error.is_closed() || std::error::Error::source(&error).is_some_and(|source| source.is::<std::io::Error>()) {
            return Fault::new(Code::PgSilent, format!("the connection to PostgreSQL of `{node}` is gone"))
                .hint("look again in a moment")
                .caused_by(error);
        }
        return Fault::new(Code::PgSql, format!("PostgreSQL of `{node}`: {attempt}")).caused_by(error);
    };
    let state = said.code();
    let (code, hint) = match state.code() {
        "28000" | "28P01" | "3D000" => {
            (Code::PgAuth, "check the certificate or password, and that this database and role exist".to_owned())
        }
        "57P03" | "57P01" | "57P02" | "53300" => (Code::PgSilent, "look again in a moment".to_owned()),
        "57014" | "55P03" | "25P03" => (
            Code::PgTimeout,
            "something else holds what is needed; `pg_stat_activity` and `pg_blocking_pids()` say who".to_owned(),
        ),
        _ if *state == SqlState::DISK_FULL => (Code::DiskFull, "make room on the disk of that node".to_owned()),
        _ => (Code::PgSql, said.hint().map(str::to_owned).unwrap_or_default()),
    };
    let fault = Fault::new(code, format!("PostgreSQL of `{node}` refuses: {attempt}"))
        .caused_by(Said { state: state.code().to_owned(), text: format!("{}: {}", said.severity(), said.message()) });
    if hint.is_empty() { fault } else { fault.hint(hint) }
}
