//! Measures a purchase on a shared ledger: `cargo bench --bench postgres`.
//!
//! Each server is a process of its own. The database is on the disk, and syncs each commit. A relay delays the
//! database's answers in the last rows, as a network does.
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

#[path = "../tests/support/postgres.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod postgres;

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tollgate::clock;
use tollgate::gateway::contract::money::{Period, SpendLimit, Usd};
use tollgate::ledger::postgres::{InstanceKind, PostgresTarget, connect};
use tollgate::ledger::{
    AccountStatus, Budgets, DedupeKey, DuplicateCheck, KeptReply, MoneyKind, PurchaseId,
    Reservation, Service, Settlement, SlotId, SlotLimit, SlotRate, Store, WantedSlot,
};

use postgres::Cluster;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const PRICE: Usd = Usd::mills(6);
const SECONDS: Duration = Duration::from_secs(8);
const RATE: SlotRate = SlotRate { requests: 1_000_000, period: Duration::from_secs(1) };
const LIMIT: SlotLimit = SlotLimit { fixed: Some(RATE), assumed: RATE };
/// Of each answer of the database.
const DELAY: Duration = Duration::from_millis(5);

fn main() -> Outcome {
    let arguments: Vec<_> = env::args().collect();
    if let [_, word, url, at_once] = &arguments[..]
        && word == "server"
    {
        return serve(url, at_once.parse()?);
    }
    println!(
        "{:<8} {:>7} {:>8} {:>12} {:>24} {:>24}",
        "servers", "at once", "delay", "purchases/s", "hold: p50, p99 (µs)", "all: p50, p99 (µs)"
    );
    let cluster = Cluster::start_on_disk();
    let near = cluster.address();
    let far = delayed(near)?;
    for (servers, address, all) in [
        (1, near, &[1, 16, 64, 256][..]),
        (3, near, &[1, 16, 64, 256]),
        (1, far, &[1, 16]),
        (3, far, &[16]),
    ] {
        measure_commits(&cluster.database().url_at(address))?;
        for at_once in all {
            let delay = if address == far { DELAY } else { Duration::ZERO };
            run(&cluster.database().url_at(address), (servers, *at_once), delay)?;
        }
    }
    Ok(())
}

/// Returns an address at which the database answers later.
fn delayed(database: SocketAddr) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || carry(client, database));
        }
    });
    Ok(address)
}

fn carry(client: TcpStream, database: SocketAddr) -> std::io::Result<()> {
    let server = TcpStream::connect(database)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || std::io::copy(&mut from, &mut to));
    let (send, answers) = mpsc::channel::<(clock::Instant, Vec<u8>)>();
    let (mut from, mut to) = (server, client);
    thread::spawn(move || {
        for (due, bytes) in answers {
            while let left @ 1.. = due.saturating_duration_since(clock::now()).as_micros() {
                thread::park_timeout(Duration::from_micros(u64::try_from(left).unwrap_or(0)));
            }
            to.write_all(&bytes)?;
        }
        to.shutdown(std::net::Shutdown::Both)
    });
    let mut bytes = [0; 1 << 16];
    while let length @ 1.. = from.read(&mut bytes)? {
        if send.send((clock::now() + DELAY, bytes[..length].to_vec())).is_err() {
            break;
        }
    }
    Ok(())
}

/// Times two small COMMITs, one after another, without tollgate: what the disk and the database take
/// of a purchase in any case.
fn measure_commits(url: &str) -> Outcome {
    let target = PostgresTarget::parse(url, MoneyKind::Play, InstanceKind::Command)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut times = runtime.block_on(async {
        let connection = connect(&target).await.map_err(|reason| reason.to_string())?;
        let client = &connection.client;
        client.batch_execute("CREATE TABLE floor (n bigint); INSERT INTO floor VALUES (0)").await?;
        let (mut times, end) = (Vec::new(), clock::now() + SECONDS);
        while clock::now() < end {
            let begun = clock::now();
            for _ in 0..2 {
                client.batch_execute("UPDATE floor SET n = n + 1").await?;
            }
            times.push(u64::try_from(begun.elapsed().as_micros())?);
        }
        connection.close().await;
        Ok::<_, Box<dyn std::error::Error>>(times)
    })?;
    let per_second = times.len() as u64 / SECONDS.as_secs();
    let shown = percentiles(&mut times);
    println!("{:<8} {:>7} {:>8} {per_second:>12} {:>24} {shown:>24}", "none", 1, "", "two COMMITs");
    Ok(())
}

/// Returns the 50th and the 99th.
fn percentiles(times: &mut [u64]) -> String {
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or(0);
    format!("{}, {}", at(50), at(99))
}

/// Runs so many servers, which share what is bought at once.
fn run(url: &str, (servers, at_once): (usize, usize), delay: Duration) -> Outcome {
    let program = env::current_exe()?;
    let mut children = Vec::new();
    for number in 0..servers {
        let own = at_once / servers + usize::from(number < at_once % servers);
        let mut child = Command::new(&program);
        child.args(["server", url, &own.to_string()]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        // The first one makes the tables.
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        output.read_line(&mut String::new())?;
        children.push((child, output));
    }
    for (child, _) in &mut children {
        child.stdin.take().ok_or("no input")?.write_all(b"\n")?;
    }
    let (mut holds, mut totals) = (Vec::new(), Vec::new());
    for (child, output) in &mut children {
        read_times(child, output, &mut holds, &mut totals)?;
    }
    let per_second = totals.len() as u64 / SECONDS.as_secs();
    let (holds, totals) = (percentiles(&mut holds), percentiles(&mut totals));
    let delay = format!("{} ms", delay.as_millis());
    println!("{servers:<8} {at_once:>7} {delay:>8} {per_second:>12} {holds:>24} {totals:>24}");
    Ok(())
}

fn read_times(
    child: &mut Child,
    output: &mut BufReader<std::process::ChildStdout>,
    holds: &mut Vec<u64>,
    totals: &mut Vec<u64>,
) -> Outcome {
    for line in output.lines() {
        let line = line?;
        let (hold, total) = line.split_once(' ').ok_or("no times")?;
        holds.push(hold.parse()?);
        totals.push(total.parse()?);
    }
    if child.wait()?.success() { Ok(()) } else { Err("a server has failed".into()) }
}

/// Buys for a while, and prints the times of each purchase in microseconds.
fn serve(url: &str, at_once: usize) -> Outcome {
    let target = PostgresTarget::parse(url, MoneyKind::Play, InstanceKind::Server)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store =
            Store::open_database(target.with_instance_name("bench".to_owned()), None).await?;
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        let end = clock::now() + SECONDS;
        let tasks = (0..at_once).map(|_| {
            let store = store.clone();
            async move {
                let mut times = Vec::new();
                while clock::now() < end {
                    times.push(buy(&store).await?);
                }
                Ok::<_, Box<dyn std::error::Error>>(times)
            }
        });
        let mut printed = String::new();
        for times in futures_util::future::try_join_all(tasks).await?.into_iter().flatten() {
            let (hold, total) = times;
            printed.push_str(&format!("{} {}\n", hold.as_micros(), total.as_micros()));
        }
        print!("{printed}");
        Ok(())
    })
}

/// Returns how long the hold took, and all that a purchase waits for in the ledger.
async fn buy(ledger: &Store) -> Outcome<(Duration, Duration)> {
    let id = PurchaseId::generate();
    let mut fingerprint = [0; 32];
    fingerprint[..16].copy_from_slice(id.0.as_bytes());
    let check = DuplicateCheck {
        fingerprint,
        within: Duration::ZERO,
        refused_as: None,
        separate_from: Vec::new(),
    };
    let reservation = Reservation {
        id,
        caller: "192.0.2.7".into(),
        group: None,
        token: None,
        service: Service::Chat,
        model: "alpha".into(),
        price: PRICE,
        dedupe_key: DedupeKey::Fingerprint(check),
        budgets: Budgets {
            total: SpendLimit::of(Period::Month, Usd::dollars(1_000_000)),
            ..Budgets::default()
        },
        replay_only: false,
        attempt: 0,
        requires: Default::default(),
    };
    let (slot, begun) = (SlotId::generate(), clock::now());
    let wanted = WantedSlot { id: slot, limit: LIMIT };
    let held = ledger.reserve_and_send(&reservation, wanted, AccountStatus::Confirmed).await?;
    let hold = begun.elapsed();
    if !held.is_sent {
        return Err("no slot was free".into());
    }
    ledger.slot_replied(slot);
    let reply = KeptReply { status: 200, is_json: true, body: vec![b'x'; 2_000].into() };
    let keep = Duration::from_secs(86_400);
    let charged = Settlement::Charged { cost: PRICE, reply: Some(reply), keep, job: None };
    ledger.settle(id, charged).await?;
    let total = begun.elapsed();
    ledger.mark_delivered(id);
    Ok((hold, total))
}
