//! `quorate ca issue`: signs what a node asks for.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_agent::peers::OperatorFiles;
use quorate_agent::turn::Node;
use quorate_faults::{Code, Exit, Fault};
use quorate_pki::{
    Authorities, Authority, Certificate, CsrBundle, LEAF_DAYS, NodeNames, OperatorRequest, Policy, Role,
    ensure_operator_certificate, issue, needs_passphrase, operators_need_passphrase, read_certificates, read_requests,
    record_issued, with_trust,
};
use quorate_plan::certificates::{OperatorRole, operator_files, pem};
use serde::Serialize;

use super::passphrase::{PassphraseArgs, Terminal};
use super::{is_stdin, read_text, unreadable, write_text};
use crate::printer::Printer;
use crate::render::{Page, Report, for_shell};

/// Flags of `ca issue`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca issue --dir prod-1-ca --config cluster.yaml n1.csr > n1.bundle
  quorate ca issue --dir prod-1-ca n1.csr --out n1.bundle
  ssh n1 quorate ca csr --config c.yaml --name n1 | quorate ca issue --dir ca
  quorate ca issue --dir prod-1-ca --role admin --name alice

With --config, nothing is signed that the cluster file does not declare for the node.
Without it, what is asked for is shown, and you are asked.

With --role, an operator gets a key and a certificate, by default in
~/.config/quorate/TOKEN, where commands find them: `viewer` reads, `operator` drains,
restarts, backs up and changes tunables, `admin` does everything else.")]
pub(crate) struct Args {
    /// The folder of `ca init`
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// What the node asks for, from `ca csr`; `-` is stdin
    #[arg(default_value = "-", value_name = "FILE")]
    file: PathBuf,

    /// The cluster file; only what it declares is signed
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// How many days the certificates hold
    #[arg(long, default_value_t = LEAF_DAYS)]
    days: u32,

    /// Sign what is shown without asking
    #[arg(long)]
    yes: bool,

    /// Write the text into a file instead of stdout; with --role, the folder of the operator
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// Make the key and the certificate of an operator: `viewer`, `operator` or `admin`
    #[arg(long, value_name = "ROLE", value_parser = role, requires = "name", conflicts_with_all = ["file", "config"])]
    role: Option<OperatorRole>,

    /// The operator's name: lower-case letters, digits and `-`
    #[arg(long, requires = "role")]
    name: Option<String>,

    #[command(flatten)]
    passphrase: PassphraseArgs,
}

/// Signs.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    if let (Some(role), Some(name)) = (args.role, &args.name) {
        return for_operator(args, role, name, printer);
    }
    let bundle = CsrBundle::decode(&read_text(&args.file)?).map_err(|error| unreadable(&args.file, error))?;
    let asked = read_requests(&bundle)?.names;
    printer.note(&in_words(&asked, args.days));
    let allowed = match &args.config {
        Some(file) => Some(declared(file, &bundle.name, printer)?),
        None if args.yes => None,
        None => {
            confirm(args)?;
            None
        }
    };
    let passphrase = match needs_passphrase(&args.dir)? {
        true => Some(args.passphrase.get(&format!("the issuing keys in `{}`", args.dir.display()), false)?),
        false => None,
    };
    let authorities = Authorities::open(&args.dir, passphrase.as_ref())?;
    let policy = Policy { days: args.days, allowed: allowed.as_ref() };
    let now = Timestamp::now();
    // A node that is new has to know from its first start whom to refuse, and whom to trust while authorities are rotated.
    let signed = with_trust(&args.dir, &authorities, issue(&authorities, &bundle, &policy, now)?)?;
    let operators = args.dir.join(operator_files::CERTIFICATE);
    let signed = match operators.exists() {
        true => signed.with_operators(read_certificates(&operators)?.into_iter().map(|one| one.der).collect()),
        false => signed,
    };
    // What is on record can be revoked by name; a folder that cannot be written to signs all the same.
    if let Err(fault) = record_issued(&args.dir, &signed, now) {
        printer.warning(fault.code(), &format!("what was signed is not on record: {fault}"));
    }
    let until = Certificate::parse(signed.certificate(Role::Peer)).map(|found| found.life.until.to_string());
    let certificates = signed.encode();
    if let Some(out) = &args.out {
        write_text(out, &certificates)?;
    }
    let (token, name) = (signed.token.clone(), signed.name.clone());
    let not_after = until.unwrap_or_default();
    printer.report(&Signed { token, name, not_after, file: args.out.clone(), certificates });
    Ok(Exit::Done)
}

fn role(text: &str) -> Result<OperatorRole, String> {
    OperatorRole::parse(text).ok_or_else(|| "it is `viewer`, `operator` or `admin`".to_owned())
}

/// Makes the files of an operator.
fn for_operator(args: &Args, role: OperatorRole, name: &str, printer: &mut Printer) -> Result<Exit, Fault> {
    let authority = args.dir.join(operator_files::CERTIFICATE);
    let found = read_certificates(&authority).map_err(|fault| {
        fault.hint("`quorate ca init` with the same folder and token adds the operators' authority")
    })?;
    let token = found.first().and_then(|one| one.organization.clone()).unwrap_or_default();
    let out = args.out.clone().or_else(|| OperatorFiles::default_dir(&token)).ok_or_else(|| {
        Fault::new(Code::Usage, "there is no home folder to write to").hint("name a folder with `--out`")
    })?;
    let passphrase = match operators_need_passphrase(&args.dir)? {
        true => Some(args.passphrase.get(&format!("the operators' authority in `{}`", args.dir.display()), false)?),
        false => None,
    };
    let request = OperatorRequest { name, role, days: args.days, out: &out };
    let made = ensure_operator_certificate(&args.dir, passphrase.as_ref(), &request, Timestamp::now())?;
    let agents = Authority::Agent.cert_file();
    if args.dir.join(&agents).exists() {
        copy_authority(&args.dir.join(&agents), &out.join(&agents))?;
    }
    let (not_after, name) = (made.until.to_string(), name.to_owned());
    printer.report(&Operator { token, name, role, serial: made.serial, not_after, folder: out });
    Ok(Exit::Done)
}

/// On machines that are no nodes, agents are known by it.
fn copy_authority(from: &Path, to: &Path) -> Result<(), Fault> {
    let text: String = read_certificates(from)?.iter().map(|one| pem(&one.der)).collect();
    write_text(to, &text)
}

fn in_words(asked: &NodeNames, days: u32) -> String {
    let names: Vec<String> = asked.dns.iter().cloned().chain(asked.ips.iter().map(ToString::to_string)).collect();
    format!("`{}` of cluster `{}` asks for {days} days, for {}", asked.name, asked.token, names.join(", "))
}

/// What the cluster file declares for a member.
fn declared(file: &Path, name: &str, printer: &mut Printer) -> Result<NodeNames, Fault> {
    let (node, warnings) = Node::read(file, Some(name))?;
    for warning in warnings {
        printer.warning(warning.code, &warning.text);
    }
    NodeNames::of(&node.spec, &node.member)
}

fn confirm(args: &Args) -> Result<(), Fault> {
    let refused = |why: &str| {
        Fault::new(Code::RequestRefused, format!("signed nothing: {why}"))
            .hint("give `--config cluster.yaml`, which decides, or `--yes`")
    };
    let from = if is_stdin(&args.file) { "stdin".to_owned() } else { format!("`{}`", args.file.display()) };
    let terminal = Terminal::open().map_err(|error| refused("there is no terminal to ask on").caused_by(error))?;
    match terminal.ask_yes(&format!("sign what {from} asks for? [y/N] "))? {
        true => Ok(()),
        false => Err(refused("you said no")),
    }
}

#[derive(Serialize)]
struct Operator {
    token: String,
    name: String,
    role: OperatorRole,
    serial: String,
    not_after: String,
    folder: PathBuf,
}

impl Report for Operator {
    fn render(&self, page: &mut Page) {
        let Operator { token, name, role, not_after, folder, .. } = self;
        let shown = folder.display();
        page.line(format!("`{name}` is `{role}` of cluster `{token}` with the files in `{shown}`, until {not_after}"));
        page.line("the key is not encrypted: keep the folder for its owner alone");
        if OperatorFiles::default_dir(token).as_ref() != Some(folder) {
            page.line(format!("commands find it with QUORATE_OPERATOR_DIR={}", for_shell(&shown.to_string())));
        }
    }
}

#[derive(Serialize)]
struct Signed {
    token: String,
    name: String,
    not_after: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    certificates: String,
}

impl Report for Signed {
    fn render(&self, page: &mut Page) {
        match &self.file {
            Some(file) => {
                page.line(format!(
                    "the certificates of `{}` are in `{}`, until {}",
                    self.name,
                    file.display(),
                    self.not_after
                ));
            }
            None => self.certificates.lines().for_each(|line| page.line(line)),
        }
    }
}
