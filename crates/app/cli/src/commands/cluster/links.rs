//! `quorate cluster links`: what clients and joining members need, in the form that they read.
//!
//! **Rule:** a private key is written only when asked for by name, and then into a file that only its owner reads, or into a
//! Secret of Kubernetes.

use std::path::{Path, PathBuf};

use quorate_agent::{cluster_file, declared};
use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Exit, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::links::{Block, Contents, Format, Kind, Link, Secret, blocks, link, render};
use serde::Serialize;

use super::ask::file_or_default;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// No certificate, and no chain of them, is longer.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Flags of `cluster links`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster links client --config cluster.yaml > etcd.env
  quorate cluster links client --config cluster.yaml --format json --contents
  quorate cluster links client --config cluster.yaml --format k8s-secret \\
      --cert web.crt --key web.key --with-key | kubectl apply -f -
  quorate cluster links peer --config cluster.yaml --name n1

Certificates are named by their paths, or written out with --contents; a Secret always
holds their contents. A private key is written out only with --with-key: into a Secret,
or into the file of --out, which nobody else can read.")]
pub(crate) struct Args {
    /// client or peer
    #[arg(value_enum, value_name = "KIND", hide_possible_values = true)]
    kind: KindArg,

    /// The cluster file [default: /etc/quorate/cluster.yaml]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// The member whose files are meant, where paths hold {name}
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// env, json, yaml or k8s-secret [default: env; json with --output json]
    #[arg(long, value_enum, value_name = "FORM", hide_possible_values = true)]
    format: Option<FormatArg>,

    /// Write certificates out instead of naming their files
    #[arg(long)]
    contents: bool,

    /// The consumer's certificate [default: that of `tls.admin`, or of `tls.peer`]
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// Its key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Write the private key out as well
    #[arg(long)]
    with_key: bool,

    /// Write into this file, which only its owner can read
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// The Secret's name [default: CLUSTER-etcd-KIND]
    #[arg(long, value_name = "NAME")]
    secret_name: Option<String>,

    /// The Secret's namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

/// Who consumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum KindArg {
    /// Clients of etcd.
    Client,
    /// Members that join.
    Peer,
}

/// How it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FormatArg {
    /// Lines for a shell.
    Env,
    /// One document.
    Json,
    /// The same as YAML.
    Yaml,
    /// A Secret of Kubernetes.
    #[value(name = "k8s-secret")]
    KubernetesSecret,
}

/// Writes the link.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let format = match args.format {
        Some(FormatArg::Env) => Format::Env,
        Some(FormatArg::Json) => Format::Json,
        Some(FormatArg::Yaml) => Format::Yaml,
        Some(FormatArg::KubernetesSecret) => Format::KubernetesSecret,
        None if printer.is_json() && args.out.is_none() => Format::Json,
        None => Format::Env,
    };
    let config = file_or_default(args.config.as_deref(), args.name.as_deref())?;
    let (spec, warnings) = cluster_file::read(&config)?;
    let (spec, more) = declared::resolve_now(spec, args.name.as_deref(), declared::ASKED_WITHIN)?;
    for warning in warnings.iter().chain(&more) {
        printer.warning(warning.code, &warning.text);
    }
    if let Some(name) = &args.name {
        spec.local(Some(name), &config.display().to_string())?;
    }
    let kind = if args.kind == KindArg::Client { Kind::Client } else { Kind::Peer };
    let mut link = link(&spec, kind, args.name.as_deref())?;
    if let (Some(cert), Some(key), Some(files)) = (&args.cert, &args.key, &mut link.files) {
        files.cert_file = absolute(cert);
        files.key_file = absolute(key);
    }
    refuse_exposure(args, format, &link)?;
    let contents = contents(args, format, &link)?;
    let secret = Secret { name: args.secret_name.clone(), namespace: args.namespace.clone() };
    let text = render(&link, contents.as_ref(), format, &secret);
    match &args.out {
        None => printer.text(&text),
        Some(file) => {
            ensure_file(&RealDisk, Path::new(&absolute(file)), text.as_bytes())?;
            printer.report(&Written { file: file.display().to_string(), with_key: args.with_key });
        }
    }
    Ok(Exit::Done)
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn refuse_exposure(args: &Args, format: Format, link: &Link) -> Result<(), Fault> {
    if !args.with_key {
        return Ok(());
    }
    if link.files.is_none() {
        return Err(
            Fault::new(Code::Usage, "this cluster is without TLS: there is no key").hint("leave `--with-key` out")
        );
    }
    match format {
        Format::KubernetesSecret => Ok(()),
        Format::Json | Format::Yaml if args.contents && args.out.is_some() => Ok(()),
        Format::Env => Err(Fault::new(Code::LinkKeyExposed, "no private key stands in an environment")
            .hint("leave `--with-key` out: the file of the key is named there")),
        Format::Json | Format::Yaml => Err(Fault::new(Code::LinkKeyExposed, "a private key is not printed")
            .hint("give `--contents --out FILE`, which only its owner can read, or `--format k8s-secret`")),
    }
}

fn contents(args: &Args, format: Format, link: &Link) -> Result<Option<Contents>, Fault> {
    let wanted = match format {
        Format::Env => false,
        Format::Json | Format::Yaml => args.contents,
        Format::KubernetesSecret => true,
    };
    let Some(files) = link.files.as_ref().filter(|_| wanted) else { return Ok(None) };
    Ok(Some(Contents {
        ca: pem(&files.trusted_ca_file, Block::Certificate)?,
        cert: pem(&files.cert_file, Block::Certificate)?,
        key: args.with_key.then(|| pem(&files.key_file, Block::PrivateKey)).transpose()?,
    }))
}

fn pem(file: &str, wanted: Block) -> Result<String, Fault> {
    let fail = |error| Fault::io(format!("cannot read `{file}`"), error);
    if std::fs::metadata(file).map_err(fail)?.len() > PEM_BYTES_MAX {
        return Err(Fault::new(Code::LinkFile, format!("cannot use `{file}`: it is far too long"))
            .hint("give a file in PEM form with the certificate, or the key, alone"));
    }
    let text = std::fs::read_to_string(file).map_err(fail)?;
    let what = if wanted == Block::Certificate { "certificate" } else { "private key" };
    blocks(&text, wanted).ok_or_else(|| {
        Fault::new(Code::LinkFile, format!("cannot use `{file}`: it holds no {what} in PEM form"))
            .hint("see that the files were not swapped: `--cert` is the certificate, `--key` its key")
    })
}

/// What was written.
#[derive(Serialize)]
struct Written {
    file: String,
    with_key: bool,
}

impl Report for Written {
    fn render(&self, page: &mut Page) {
        let what = if self.with_key { ", with the private key" } else { "" };
        page.line(format!("{}: written{what}; only its owner can read it", self.file));
    }
}
