//! Side-by-side benchmarks: Quorate and its peers do the same work in turns, and the medians are compared.
//!
//! **Rule:** absolute times drift from day to day, so only ratios taken in one run are worth anything. The floor (what
//! the machine needs to copy the same bytes durably) is measured beside them.

mod agent;
mod box_;
mod certificates;
mod change;
mod chart;
mod dataset;
mod deltas;
mod follow;
mod found;
mod measure;
mod peers;
mod postgres;
mod proxied;
mod restore;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use quorate_testkit::Tools;

use dataset::Dataset;
use measure::{Sample, alternate};

/// One line of the results.
struct Row {
    work: String,
    ours: Sample,
    peer: String,
    theirs: Option<Sample>,
    reach: String,
    met: bool,
}

/// Runs everything, or one part: `offline` (written to `bench/results.md`), `follow` (`bench/following.md`), `agent`
/// (`bench/agent.md`), `found` (`bench/founding.md`), `change` (`bench/change.md`), `postgres` (`bench/postgres.md`), `peers`
/// (`bench/peers.md`) or `box` (`bench/box.md`). `dd` prints the one line that compares a restore with `dd` on the file system of
/// `TMPDIR`, and writes no page. `QUORATE_BIN` names another program than the one that `make build` makes.
pub(crate) fn run(root: &Path, part: Option<&str>) -> Result<String> {
    let quorate = std::env::var_os("QUORATE_BIN").map_or_else(|| root.join("target/release/quorate"), Into::into);
    let tools = quorate_testkit::etcd("sid");
    let work = root.join("bench/work");
    std::fs::create_dir_all(&work)?;
    let mut said = String::new();
    if part.is_none_or(|part| part == "offline") {
        let rows = offline(&quorate, &tools, &work)?;
        said += &page(root, "results", "Results", &tools, &rows)?;
        write(&root.join("bench/results.svg"), &chart::draw(&rows))?;
    }
    if part.is_none_or(|part| part == "follow") {
        said += &page(root, "following", "Following a live cluster", &tools, &follow::rows(&quorate, &tools, &work)?)?;
    }
    if part.is_none_or(|part| part == "agent") {
        said += &page(root, "agent", "The agent", &tools, &agent::rows(&quorate, &tools, &work)?)?;
    }
    if part.is_none_or(|part| part == "found") {
        said += &page(root, "founding", "Founding a cluster", &tools, &found::rows(&quorate, &tools, &work)?)?;
    }
    if part.is_none_or(|part| part == "change") {
        said += &page(root, "change", "Changing a living cluster", &tools, &change::rows(&quorate, &tools, &work)?)?;
    }
    if part.is_none_or(|part| part == "postgres") {
        let rows = postgres::rows(&quorate, &tools)?;
        said += &page(root, "postgres", "Groups of PostgreSQL servers", &tools, &rows)?;
    }
    // With everything else, a user who cannot have these boxes is told so; asked for by name, it is an error.
    if part.is_none() && !rustix::process::geteuid().is_root() {
        said += "(peers are not measured: hosts of network namespaces need root)\n";
    } else if part.is_none_or(|part| part == "peers") {
        said += &page(root, "peers", "Clusters by hand", &tools, &peers::rows(&quorate, &tools, &work)?)?;
    }
    if part.is_none() && !rustix::process::geteuid().is_root() {
        said += "(the box is not measured: strict boxes and runc need root)\n";
    } else if part.is_none_or(|part| part == "box") {
        said += &page(root, "box", "The box", &tools, &box_::rows(&quorate, &tools, &work)?)?;
    }
    if part == Some("dd") {
        let scratch = tempfile::tempdir()?;
        said += &render(&[restore::beside_dd(&quorate, &work, &scratch.path().join("restored"))?]);
    }
    if said.is_empty() {
        bail!(
            "there is no part `{}`: it is `offline`, `follow`, `agent`, `found`, `change`, `postgres`, `peers`, `box` or `dd`",
            part.unwrap_or_default()
        );
    }
    Ok(said)
}

/// Work on files, without a server.
fn offline(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let gib = Dataset::make(work, &tools.etcdutl)?;
    let mut rows = vec![
        init(quorate, &tools.etcdutl, work, &gib)?,
        verify_full(quorate, &tools.etcdutl, &gib)?,
        verify_sanity(quorate, &gib)?,
        inspect(quorate, &gib)?,
        inspect_count(quorate, &gib)?,
        copy(work, &gib)?,
    ];
    rows.extend(deltas::rows(quorate, tools, work, &gib.blank)?);
    rows.extend(restore::rows(quorate, &tools.etcdutl, work, &gib)?);
    Ok(rows)
}

/// Writes a page of results, and gives its table.
fn page(root: &Path, name: &str, title: &str, tools: &Tools, rows: &[Row]) -> Result<String> {
    let table = render(rows);
    let mut text = format!(
        "# {title}\n\nMade by `make bench`, against etcd {}. Medians; peak resident memory in brackets.\n\n{table}",
        tools.version
    );
    if name == "results" {
        text += "\n![chart](results.svg)\n";
    }
    write(&root.join(format!("bench/{name}.md")), &text)?;
    Ok(format!("{table}(written to bench/{name}.md)\n"))
}

fn init(quorate: &Path, etcdutl: &Path, work: &Path, gib: &Dataset) -> Result<Row> {
    let members = ["m1=https://10.0.0.1:2380", "m2=https://10.0.0.2:2380", "m3=https://10.0.0.3:2380"];
    let scratch = work.join("init");
    let ours = || -> Result<Vec<Command>> {
        fresh(&scratch)?;
        let commands = (1..=3).map(|n| {
            let mut command = Command::new(quorate);
            command.args(["data", "init", "--quiet", "--token", "bench", "--name"]).arg(format!("m{n}"));
            command.arg("--data-dir").arg(scratch.join(format!("m{n}")));
            command.args(members.iter().flat_map(|member| ["--member", member]));
            command
        });
        Ok(commands.collect())
    };
    let theirs = || -> Result<Vec<Command>> {
        fresh(&scratch)?;
        let commands = (1..=3).map(|n| {
            let mut command = Command::new(etcdutl);
            command.args(["snapshot", "restore", "--skip-hash-check"]).arg(&gib.blank);
            command.args(["--initial-cluster-token", "bench", "--name"]).arg(format!("m{n}"));
            command.arg("--initial-cluster").arg(members.join(","));
            command.arg("--initial-advertise-peer-urls").arg(format!("https://10.0.0.{n}:2380"));
            command.arg("--data-dir").arg(scratch.join(format!("m{n}")));
            command
        });
        Ok(commands.collect())
    };
    let (ours, theirs) = alternate(15, ours, theirs)?;
    let met = theirs.seconds >= 3.0 * ours.seconds && ours.rss_mib <= 16.0;
    Ok(Row {
        work: "`data init`, blank, 3 members".into(),
        ours,
        peer: "`etcdutl snapshot restore` of a blank snapshot, ×3".into(),
        theirs: Some(theirs),
        reach: "≥ 3× faster, ≤ 16 MiB".into(),
        met,
    })
}

fn verify_full(quorate: &Path, etcdutl: &Path, gib: &Dataset) -> Result<Row> {
    let ours = || Ok(vec![data(quorate, "verify", &gib.data_dir, &["--mode", "full"])]);
    let theirs = || {
        let mut command = Command::new(etcdutl);
        command.args(["snapshot", "status"]).arg(&gib.db);
        Ok(vec![command])
    };
    let (ours, theirs) = alternate(7, ours, theirs)?;
    let met = ours.seconds <= theirs.seconds && ours.rss_mib <= 64.0;
    Ok(Row {
        work: "`data verify --mode full`, data dir with a 1 GiB db".into(),
        ours,
        peer: "`etcdutl snapshot status` of the same db".into(),
        theirs: Some(theirs),
        reach: "no slower, ≤ 64 MiB".into(),
        met,
    })
}

fn verify_sanity(quorate: &Path, gib: &Dataset) -> Result<Row> {
    let ours = measure::repeat(15, || Ok(vec![data(quorate, "verify", &gib.data_dir, &["--mode", "sanity"])]))?;
    let met = ours.seconds < 0.05;
    Ok(alone("`data verify --mode sanity`, the same data dir", ours, "< 50 ms", met))
}

fn inspect(quorate: &Path, gib: &Dataset) -> Result<Row> {
    let ours = measure::repeat(15, || Ok(vec![data(quorate, "inspect", &gib.snapshot, &[])]))?;
    let met = ours.seconds < 0.02;
    Ok(alone("`data inspect`, 1 GiB snapshot", ours, "< 20 ms", met))
}

fn inspect_count(quorate: &Path, gib: &Dataset) -> Result<Row> {
    let ours = || Ok(vec![data(quorate, "inspect", &gib.snapshot, &["--count"])]);
    let theirs = || {
        let mut command = Command::new("cat");
        command.arg(&gib.snapshot);
        Ok(vec![command])
    };
    let (ours, theirs) = alternate(7, ours, theirs)?;
    let met = ours.seconds <= 1.5 * theirs.seconds;
    Ok(Row {
        work: "`data inspect --count`, 1 GiB snapshot".into(),
        ours,
        peer: "reading the file (`cat`)".into(),
        theirs: Some(theirs),
        reach: "≤ 1.5× of it".into(),
        met,
    })
}

/// The floor: what copying the database durably costs here.
fn copy(work: &Path, gib: &Dataset) -> Result<Row> {
    let target = work.join("copy.db");
    let floor = measure::repeat(3, || {
        let mut copy = Command::new("cp");
        copy.arg("--reflink=never").arg(&gib.db).arg(&target);
        let mut sync = Command::new("sync");
        sync.arg(&target);
        Ok(vec![copy, sync])
    })?;
    std::fs::remove_file(&target)?;
    Ok(alone("floor: `cp` + fsync of the 1 GiB db", floor, "–", true))
}

fn alone(work: &str, ours: Sample, reach: &str, met: bool) -> Row {
    Row { work: work.into(), ours, peer: "–".into(), theirs: None, reach: reach.into(), met }
}

fn data(quorate: &Path, verb: &str, path: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(quorate);
    command.args(["data", verb]).arg(path).args(flags);
    command
}

#[expect(clippy::disallowed_methods, reason = "a scratch dir of the benchmark itself")]
fn fresh(dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir)?;
    }
    Ok(std::fs::create_dir_all(dir)?)
}

#[expect(clippy::disallowed_methods, reason = "a report, not data")]
fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write `{}`", path.display()))
}

fn render(rows: &[Row]) -> String {
    let mut table = String::from(
        "| work | quorate | against | theirs | ratio | reach | met |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        table.push_str(&line(row));
    }
    table
}

fn line(row: &Row) -> String {
    let theirs = row.theirs.as_ref().map_or_else(|| "–".to_owned(), Sample::show);
    let ratio = row
        .theirs
        .as_ref()
        .map_or_else(|| "–".to_owned(), |theirs| format!("{:.2}×", theirs.seconds / row.ours.seconds));
    let met = if row.met { "yes" } else { "**no**" };
    let cells = [&row.work, &row.ours.show(), &row.peer, &theirs, &ratio, &row.reach, met].map(|cell| cell.to_owned());
    format!("| {} |\n", cells.join(" | "))
}

/// Shows a row as soon as it is known: the next one may take minutes.
#[expect(clippy::print_stdout, reason = "a chore talks to the developer at the terminal")]
fn known(row: Row) -> Row {
    print!("{}", line(&row));
    row
}
