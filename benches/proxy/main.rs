//! Measures tollgate beside nginx on the path that people run: see benches/README.md.
#![expect(clippy::print_stdout, reason = "it prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "it measures real time")]
#![expect(clippy::float_arithmetic, reason = "figures of a benchmark are not money")]

mod count;
mod load;
mod mock;
mod report;
mod subject;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use report::Report;
use subject::Subject;
use tollgate::clock;
use tollgate::ledger::Store;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What the command line asks for.
struct Plan {
    rounds: u32,
    seconds: u32,
    json: Option<PathBuf>,
    /// Another build of tollgate, measured beside this one.
    other: Option<PathBuf>,
    only: Vec<String>,
}

/// A build of tollgate, or nginx.
#[derive(Clone)]
enum Build {
    Nginx,
    Tollgate { name: String, program: PathBuf, store: &'static str },
}

impl Build {
    fn name(&self) -> &str {
        match self {
            Self::Nginx => "nginx",
            Self::Tollgate { name, .. } => name,
        }
    }

    fn start(&self, gateway: &Subject, settings: &str) -> Outcome<Subject> {
        match self {
            Self::Nginx => Subject::nginx(gateway.address),
            Self::Tollgate { program, store, .. } => {
                Subject::tollgate(program, gateway.address, store, settings, None, &[])
            }
        }
    }
}

/// Requests of one kind. `purchases` says whether each 2xx must have reached the gateway once.
struct Scenario {
    name: &'static str,
    connections: u32,
    settings: &'static str,
    purchases: bool,
    /// Whether refusals are what is measured.
    refusals: bool,
}

const fn scenario(name: &'static str, connections: u32) -> Scenario {
    Scenario { name, connections, settings: "", purchases: true, refusals: false }
}

const SCENARIOS: [Scenario; 15] = [
    scenario("chat", 32),
    Scenario { name: "chat@1", ..scenario("chat", 1) },
    Scenario { name: "chat@256", ..scenario("chat", 256) },
    scenario("chat16k", 32),
    scenario("unkeyed", 32),
    scenario("video", 32),
    Scenario { name: "video@1", ..scenario("video", 1) },
    Scenario { name: "video@256", ..scenario("video", 256) },
    Scenario {
        settings: "[budget]\ntotal = { day = \"9000000.00\" }\n",
        ..scenario("callers", 32)
    },
    scenario("sse", 32),
    Scenario { purchases: false, ..scenario("replay", 32) },
    Scenario { purchases: false, ..scenario("status", 32) },
    Scenario { purchases: false, refusals: true, ..scenario("invalid", 32) },
    Scenario {
        settings: "[budget]\ntotal = { day = \"0.001\" }\n",
        purchases: false,
        refusals: true,
        ..scenario("budget", 32)
    },
    Scenario {
        settings: "[limits]\nrequests = 1\nseconds = 60\nburst = 1\n",
        purchases: false,
        refusals: true,
        ..scenario("limited", 32)
    },
];

/// The scenarios that `measure` does not run.
const OTHERS: [&str; 4] = ["fixed", "idle", "start", "counts"];

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [verb, address] = &words[..]
        && verb == "mock"
    {
        return mock::serve(address);
    }
    let plan = plan(words)?;
    let builds = builds(&plan);
    let mut report = Report::default();
    let wanted = |name: &str| plan.only.is_empty() || plan.only.iter().any(|only| only == name);
    for scenario in SCENARIOS.iter().filter(|scenario| wanted(scenario.name)) {
        measure(scenario, &builds, &plan, &mut report)?;
    }
    if wanted("fixed") {
        fixed(&builds, &plan, &mut report)?;
    }
    if wanted("idle") {
        idle(&builds, &mut report)?;
    }
    if wanted("start") {
        start(&builds, &plan, &mut report)?;
    }
    if wanted("counts") {
        count::system_calls(&builds, &mut report)?;
        count::allocations(&builds, &mut report)?;
        count::instructions(&builds, &mut report)?;
    }
    println!("{}", report.table());
    if let Some(path) = plan.json {
        std::fs::write(path, report.json())?;
    }
    Ok(())
}

fn plan(words: Vec<String>) -> Outcome<Plan> {
    let mut plan = Plan { rounds: 3, seconds: 4, json: None, other: None, only: Vec::new() };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--rounds" => plan.rounds = value()?.parse()?,
            "--seconds" => plan.seconds = value()?.parse()?,
            "--json" => plan.json = Some(value()?.into()),
            "--other" => plan.other = Some(value()?.into()),
            name if name.starts_with("--") => return Err(format!("unknown option {name}").into()),
            name => {
                let known = SCENARIOS.iter().map(|one| one.name).chain(OTHERS);
                if !known.clone().any(|one| one == name) {
                    let known = known.collect::<Vec<_>>().join(", ");
                    return Err(format!("unknown scenario {name}; known: {known}").into());
                }
                plan.only.push(word);
            }
        }
    }
    Ok(plan)
}

fn builds(plan: &Plan) -> Vec<Build> {
    let this = PathBuf::from(env!("CARGO_BIN_EXE_tollgate"));
    let tollgate = |name: &str, program: &Path, store| Build::Tollgate {
        name: name.to_owned(),
        program: program.to_owned(),
        store,
    };
    let mut builds = vec![
        Build::Nginx,
        tollgate("sqlite", &this, "sqlite:tollgate.db"),
        tollgate("memory", &this, "memory"),
    ];
    if let Some(other) = &plan.other {
        builds.push(tollgate("other sqlite", other, "sqlite:tollgate.db"));
        builds.push(tollgate("other memory", other, "memory"));
    }
    builds
}

/// Runs one scenario in rounds, each build in turn in each of them.
fn measure(scenario: &Scenario, builds: &[Build], plan: &Plan, report: &mut Report) -> Outcome {
    let words = scenario.name.split('@').next().unwrap_or_default();
    for round in 0..plan.rounds {
        for build in builds {
            let gateway = Subject::mock()?;
            // nginx forwards what tollgate refuses: that is the comparison.
            let subject = build.start(&gateway, scenario.settings)?;
            if words == "status" {
                load::saturate(subject.address, "video", "first", 1, 1)?;
            }
            let run = format!("warm{round}");
            load::saturate(subject.address, words, &run, scenario.connections, 1)?;
            let (before, cpu) = (count(&gateway)?, subject.cpu_nanos());
            let written = subject.written();
            let run = format!("r{round}");
            let done =
                load::saturate(subject.address, words, &run, scenario.connections, plan.seconds)?;
            let sold = count(&gateway)? - before;
            let (cpu, written) = (subject.cpu_nanos() - cpu, subject.written() - written);
            let is_proxy = matches!(build, Build::Tollgate { .. });
            if is_proxy && scenario.refusals != (done.refused > done.requests / 2) {
                return Err(format!("{} of {}: {done:?}", scenario.name, build.name()).into());
            }
            // wrk drops what is in flight when its time is up.
            if is_proxy
                && scenario.purchases
                && sold.abs_diff(done.requests - done.refused) > u64::from(scenario.connections)
            {
                return Err(format!("{} answers, {sold} purchases", done.requests).into());
            }
            let requests = done.requests.max(1) as f64;
            report.add(scenario.name, build.name(), "cpu_us", cpu as f64 / 1000.0 / requests);
            report.add(scenario.name, build.name(), "per_s", requests * 1e6 / done.micros as f64);
            report.add(scenario.name, build.name(), "p50_us", done.p50_micros as f64);
            report.add(scenario.name, build.name(), "p99_us", done.p99_micros as f64);
            report.add(scenario.name, build.name(), "lost", done.lost as f64);
            report.add(scenario.name, build.name(), "written", written as f64 / requests);
            if round + 1 == plan.rounds && words == "chat" {
                let mib = subject.memory_kib() as f64 / 1024.0;
                report.add(scenario.name, build.name(), "mib_after", mib);
            }
        }
    }
    Ok(())
}

/// Chats at 200 a second: the latency that a caller feels on a quiet machine.
fn fixed(builds: &[Build], plan: &Plan, report: &mut Report) -> Outcome {
    for round in 0..plan.rounds {
        for build in builds {
            let gateway = Subject::mock()?;
            let subject = build.start(&gateway, "")?;
            load::fixed_rate(subject.address, "warm", 200, 1)?;
            let cpu = subject.cpu_nanos();
            let run = format!("r{round}");
            let done = load::fixed_rate(subject.address, &run, 200, plan.seconds)?;
            let cpu = (subject.cpu_nanos() - cpu) as f64 / 1000.0 / done.requests as f64;
            report.add("fixed 200/s", build.name(), "cpu_us", cpu);
            report.add("fixed 200/s", build.name(), "p50_us", done.p50_micros as f64);
            report.add("fixed 200/s", build.name(), "p99_us", done.p99_micros as f64);
        }
    }
    Ok(())
}

/// Memory with 5,000 connections that have sent one request each, and after they have closed.
fn idle(builds: &[Build], report: &mut Report) -> Outcome {
    for build in builds {
        let gateway = Subject::mock()?;
        let subject = build.start(&gateway, "")?;
        let mib = |subject: &Subject| subject.memory_kib() as f64 / 1024.0;
        report.add("idle", build.name(), "mib_start", mib(&subject));
        let connections = load::open(subject.address, 5_000)?;
        std::thread::sleep(Duration::from_secs(2));
        report.add("idle", build.name(), "mib_5000", mib(&subject));
        drop(connections);
        std::thread::sleep(Duration::from_secs(3));
        report.add("idle", build.name(), "mib_closed", mib(&subject));
    }
    Ok(())
}

/// The time from the start of the process to its first answer, with an empty ledger and a large one.
fn start(builds: &[Build], plan: &Plan, report: &mut Report) -> Outcome {
    let folder = tempfile::tempdir()?;
    let ledger = folder.path().join("tollgate.db");
    fill(&ledger, 1_000_000)?;
    for _ in 0..plan.rounds {
        for build in builds {
            let gateway = Subject::mock()?;
            let subject = build.start(&gateway, "")?;
            report.add("start", build.name(), "ms", subject.started_in.as_secs_f64() * 1000.0);
            drop(subject);
            let Build::Tollgate { program, store, name } = build else { continue };
            if *store == "memory" {
                continue;
            }
            let at = Subject::tollgate(program, gateway.address, store, "", Some(&ledger), &[])?;
            let sold = at.first_sale()?;
            report.add("start", name, "sale_1e6_ms", sold.as_secs_f64() * 1000.0);
        }
    }
    for build in builds {
        if let Build::Tollgate { program, name, .. } = build {
            let mib = std::fs::metadata(program)?.len() as f64 / 1024.0 / 1024.0;
            report.add("binary", name, "mib", mib);
        }
    }
    Ok(())
}

/// Makes a ledger with so many charged chats, and closes it as a server does.
fn fill(path: &Path, rows: u32) -> Outcome {
    drop(Store::serve(path, Arc::new(clock::wall))?);
    let file = rusqlite::Connection::open(path)?;
    file.execute_batch(&format!(
        "PRAGMA synchronous = OFF;
         BEGIN;
         WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < {rows})
         INSERT INTO purchases (id, at, day, month, caller, service, model, price_micros, cost_micros, state,
             key, payload, ended_at, keep_until)
         SELECT randomblob(16), n, 20000, 657, 'member:m' || (n % 50), 'chat', 'eta-5-mini', 3000, 3000,
             'charged', randomblob(32), randomblob(32), n, n FROM rows;
         INSERT INTO spent SELECT 'caller ' || caller, 'day', day, sum(cost_micros) FROM purchases GROUP BY caller;
         INSERT INTO spent SELECT 'caller ' || caller, 'month', month, sum(cost_micros) FROM purchases
             GROUP BY caller;
         INSERT INTO spent SELECT 'total', 'day', day, sum(cost_micros) FROM purchases;
         INSERT INTO spent SELECT 'total', 'month', month, sum(cost_micros) FROM purchases;
         COMMIT;"
    ))?;
    drop(file);
    drop(Store::serve(path, Arc::new(clock::wall))?);
    Ok(())
}

/// The purchases that have reached the gateway, once none is under way any more.
fn count(gateway: &Subject) -> Outcome<u64> {
    let mut last = None;
    for _ in 0..100 {
        let reply = subject::get(gateway.address, "/count")?;
        let now = reply.rsplit("\r\n").next().unwrap_or_default().parse()?;
        if last.replace(now) == Some(now) {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err("purchases still arrive five seconds after the last request".into())
}
