//! Which thread runs a command.

use super::*;

#[test]
fn brief_command_that_is_alone_runs_on_its_callers_thread() {
    on_file(async |store, _| {
        for attempt in 0.. {
            wait_for_writers_thread(&store);
            if !runs_on_the_writers_thread(&store, Durability::Buffered).await {
                break;
            }
            assert!(attempt < 1_000);
        }
        for _ in 0..100 {
            assert!(runs_on_the_writers_thread(&store, Durability::Synced).await, "it may wait");
            let long = store.query(|_| Ok(is_writers_thread())).await.unwrap();
            assert!(long, "it may take long");
            let (one, other) = join(
                runs_on_the_writers_thread(&store, Durability::Buffered),
                runs_on_the_writers_thread(&store, Durability::Buffered),
            )
            .await;
            assert!(one && other, "they share a transaction");
        }
    });
}

#[test]
fn commands_of_purchases_that_run_at_once_run_on_the_writers_thread() {
    on_file(async |store, _| {
        for _ in 0..2 {
            store.reserve(&reservation(Usd::mills(1)), None).await.unwrap();
        }
        for _ in 0..100 {
            assert!(runs_on_the_writers_thread(&store, Durability::Buffered).await);
        }
    });
}

#[test]
fn command_waits_on_the_writers_thread_while_another_process_writes() {
    on_file(async |store, path| {
        let other = Connection::open(path).unwrap();
        with_writer(&store, |writer| writer.ledger.busy_timeout = Duration::from_secs(60));
        for _ in 0..20 {
            wait_for_writers_thread(&store);
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            let held = reservation(Usd::mills(1));
            let sale = async {
                store.reserve(&held, None).await.unwrap();
                store.settle(held.id, Settlement::Released).await.unwrap();
            };
            // The runtime goes on meanwhile.
            let end = async {
                for _ in 0..1_000 {
                    tokio::task::yield_now().await;
                }
                other.execute_batch("COMMIT").unwrap();
            };
            join(sale, end).await;
        }
        let count = "SELECT count(*) FROM purchases WHERE state = 'released'";
        assert_eq!(other.query_row(count, [], |row| row.get::<_, i64>(0)), Ok(20));
    });
}

#[test]
fn panic_on_a_callers_thread_ends_the_ledger_as_on_its_own() {
    on_file(async |store, _| {
        let mut attempts = 0;
        while !store.inner.gate.has_failed() && store.writer_answers().await {
            attempts += 1;
            assert!(attempts < 1_000);
            let broken = store.execute(Durability::Buffered, true, |_| -> Result<()> {
                assert!(is_writers_thread(), "on purpose");
                Ok(())
            });
            // Without an answer, but the caller goes on.
            broken.await.ok();
            wait_for_writers_thread(&store);
        }
        assert!(store.reserve(&reservation(Usd::mills(1)), None).await.is_err());
    });
}

#[test]
fn large_reply_is_written_on_the_writers_thread() {
    on_file(async |store, _| {
        let (sender, commits) = std::sync::mpsc::channel();
        let hook = move || sender.send(is_writers_thread()).is_err();
        with_writer(&store, |writer| writer.ledger.db.connection.commit_hook(Some(hook)).unwrap());
        let is_written_there = async |size| {
            let held = reservation(Usd::mills(1));
            store.reserve(&held, None).await.unwrap();
            wait_for_writers_thread(&store);
            store.settle(held.id, charged(size)).await.unwrap();
            commits.try_iter().last().unwrap()
        };
        let mut attempts = 0;
        while is_written_there(1).await {
            attempts += 1;
            assert!(attempts < 1_000);
        }
        for _ in 0..10 {
            assert!(is_written_there(65 * 1_024).await);
        }
    });
}

/// Waits until the writer's thread waits for commands, or the ledger has failed.
fn wait_for_writers_thread(store: &SqliteStore) {
    let Executor::Thread { queue, .. } = &store.inner.executor else { panic!("a thread") };
    while !queue.is_writer_waiting() && !store.inner.gate.has_failed() {
        thread::yield_now();
    }
}

/// Changes the writer, which is there while its thread waits.
fn with_writer(store: &SqliteStore, change: impl FnOnce(&mut Writer)) {
    let Executor::Thread { writer, .. } = &store.inner.executor else { panic!("a thread") };
    let mut change = Some(change);
    while let Some(next) = change.take() {
        match lock(&writer.0).as_mut() {
            Some(writer) => next(writer),
            None => change = Some(next),
        }
    }
}

fn is_writers_thread() -> bool {
    thread::current().name() == Some("ledger")
}

async fn runs_on_the_writers_thread(store: &SqliteStore, durability: Durability) -> bool {
    store.execute(durability, true, |_| Ok(is_writers_thread())).await.unwrap()
}
