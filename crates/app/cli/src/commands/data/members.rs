//! The flags that say which cluster a data dir is for, and where it goes; shared by whoever makes one.

use std::path::PathBuf;
use std::time::Duration;

use quorate_agent::sources::{self, SourceOptions};
use quorate_etcd::init::{Request, Target};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_faults::{Code, Fault};
use quorate_plan::roster::{Answer, Gathering, Next, Roster, parse_member_flags};

use super::init::report::{Ending, InitReport};
use crate::args;
use crate::printer::Printer;

/// Who this is, and where it goes.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// This member's name in the list
    #[arg(long)]
    name: Option<String>,

    /// The data dir to make, as etcd's --data-dir
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// A separate dir for the WAL, as etcd's --wal-dir
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<PathBuf>,
}

impl Place {
    /// The paths, in one spelling.
    fn target(&self) -> Result<Target, Fault> {
        Target::new(&self.data_dir, self.wal_dir.as_deref())
    }
}

/// Which members the cluster has.
#[derive(Debug, clap::Args)]
pub(crate) struct Members {
    /// The etcd that will run on it: 3.4, 3.5, 3.6 or 3.7 [default: a form for all of them]
    #[arg(long, value_name = "VERSION", value_parser = form)]
    etcd_version: Option<Form>,

    /// A member of the cluster; repeat for each
    #[arg(long = "member", value_name = "NAME=URL[,URL]", conflicts_with = "source")]
    members: Vec<String>,

    /// Where to ask for the member list: static:, file:, dns-srv:, http(s)://, exec:, consul:, etcd:
    #[arg(long, value_name = "URI")]
    source: Option<String>,

    /// How many members the list must have
    #[arg(long, value_name = "N")]
    expect: Option<usize>,

    /// How long to wait for the list to reach --expect
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = args::duration, requires = "expect")]
    wait: Duration,
}

/// What a source may need besides its URI.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Access to the source")]
pub(crate) struct SourceAccess {
    /// Who signed the source's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "source")]
    source_cacert: Option<PathBuf>,

    /// Our certificate for the source (PEM)
    #[arg(long, value_name = "FILE", requires = "source", requires = "source_key")]
    source_cert: Option<PathBuf>,

    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "source", requires = "source_cert")]
    source_key: Option<PathBuf>,

    /// A file with a bearer token, or a Consul ACL token
    #[arg(long, value_name = "FILE", requires = "source")]
    source_token_file: Option<PathBuf>,

    /// A file with user:password
    #[arg(long, value_name = "FILE", requires = "source")]
    source_user_file: Option<PathBuf>,
}

impl Members {
    /// For which etcd.
    fn form(&self) -> Form {
        self.etcd_version.unwrap_or(Form::Any)
    }

    /// The list, checked; what is odd about it is said. With `--member` alone nothing is asked over the network.
    fn roster(&self, name: Option<&str>, access: &SourceAccess, printer: &mut Printer) -> Result<Roster, Fault> {
        let roster = self.gather(name, access, printer)?;
        for warning in roster.check()? {
            printer.warning(warning.code, &warning.text);
        }
        Ok(roster)
    }

    fn gather(&self, name: Option<&str>, access: &SourceAccess, printer: &mut Printer) -> Result<Roster, Fault> {
        let Some(uri) = &self.source else {
            let roster = match self.members.as_slice() {
                [] => Roster::of_one(name),
                flags => parse_member_flags(flags)?,
            };
            // A list on the command line does not grow by waiting.
            let mut gathering = Gathering::new(roster.provenance.clone(), self.expect, true);
            return match gathering.take(Ok(Answer { roster, absent: vec![] })) {
                Next::Done(roster) => Ok(roster),
                Next::Refuse(fault) => Err(fault),
                Next::Wait(_) => Err(gathering.give_up(Duration::ZERO)),
            };
        };
        let options = SourceOptions {
            cacert: access.source_cacert.clone(),
            cert: access.source_cert.clone(),
            key: access.source_key.clone(),
            token_file: access.source_token_file.clone(),
            user_file: access.source_user_file.clone(),
            local_name: name.map(str::to_owned),
            ..SourceOptions::default()
        };
        let source = sources::open(uri, &options)?;
        for warning in source.warnings() {
            printer.warning(warning.code, &warning.text);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Fault::io("cannot prepare to ask the source", error))?;
        let mut say = |what: &str| printer.note(what);
        runtime.block_on(sources::gather(source.as_ref(), self.expect, self.wait, &mut say))
    }
}

/// Where a member goes and which list it is of: what every command that makes one settles first.
pub(crate) struct Site {
    /// The paths.
    pub(crate) target: Target,
    /// The list.
    pub(crate) roster: Roster,
    /// This member's name in it.
    pub(crate) local: String,
    /// For which etcd.
    pub(crate) form: Form,
}

impl Site {
    /// Settles the paths, the list, and who of it this is; nothing is touched.
    pub(crate) fn settle(
        place: &Place,
        members: &Members,
        access: &SourceAccess,
        printer: &mut Printer,
    ) -> Result<Site, Fault> {
        let target = place.target()?;
        let roster = members.roster(place.name.as_deref(), access, printer)?;
        let local = roster.local(place.name.as_deref())?.name.clone();
        Ok(Site { target, roster, local, form: members.form() })
    }

    /// The cluster on paper.
    pub(crate) fn founding(&self, token: &str) -> Result<Founding, Fault> {
        founding(&self.roster, token)
    }

    /// Who of that cluster is made here, and in which form.
    pub(crate) fn request<'f>(&self, founding: &'f Founding) -> Result<Request<'f>, Fault> {
        request(founding, &self.local, self.form)
    }

    /// What is said about it at the end.
    pub(crate) fn report(&self, ending: Ending, founding: &Founding, token: &str) -> Result<InitReport, Fault> {
        let local = self.roster.local(Some(&self.local))?;
        Ok(InitReport::new(ending, &self.target, &self.roster, local, founding, token))
    }
}

/// One member of a cluster on paper, by its name.
pub(crate) fn request<'f>(founding: &'f Founding, name: &str, form: Form) -> Result<Request<'f>, Fault> {
    let lost = || Fault::new(Code::Internal, format!("`{name}` got lost between list and cluster"));
    Ok(Request { founding, local: founding.member(name).ok_or_else(lost)?, form })
}

/// The cluster on paper.
fn founding(roster: &Roster, token: &str) -> Result<Founding, Fault> {
    let members = roster.members.iter().map(|member| (member.name.clone(), member.peer_urls.clone())).collect();
    Founding::new(members, token).map_err(|error| {
        Fault::new(Code::RosterBadId, error.to_string())
            .hint("give another `--token`, or change one of these peer URLs")
    })
}

/// Reads `3.5`, `v3.5` or `3.5.16`.
fn form(text: &str) -> Result<Form, String> {
    let mut parts = text.trim_start_matches('v').split('.');
    let form = match (parts.next(), parts.next()) {
        (Some("3"), Some("4")) => Some(Form::V3_4),
        (Some("3"), Some("5")) => Some(Form::V3_5),
        (Some("3"), Some("6")) => Some(Form::V3_6),
        (Some("3"), Some("7")) => Some(Form::V3_7),
        _ => None,
    };
    let patch_is_number = parts.all(|part| part.parse::<u32>().is_ok());
    form.filter(|_| patch_is_number)
        .ok_or_else(|| "give 3.4, 3.5, 3.6 or 3.7, or leave it out for all of them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        for text in ["3.5", "v3.5", "3.5.16"] {
            assert!(matches!(form(text), Ok(Form::V3_5)), "{text}");
        }
        for text in ["", "3", "3.3", "4.0", "3.5.x", "latest"] {
            assert!(form(text).is_err(), "{text}");
        }
    }
}
