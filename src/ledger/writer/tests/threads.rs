//! The writer's thread.

use super::*;

#[test]
fn command_waits_while_another_process_writes_and_the_runtime_goes_on() {
    on_file(async |store, path| {
        let other = Connection::open(path).unwrap();
        for _ in 0..20 {
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            let held = reservation(Usd::mills(1));
            let sale = async {
                store.reserve(&held).await.unwrap();
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
fn panic_ends_the_ledger_and_its_callers_go_on() {
    on_file(async |store, _| {
        let broken = store
            .execute("panic", Durability::Buffered, |_| -> Result<()> { panic!("on purpose") });
        broken.await.unwrap_err();
        // The thread drops its queue before it ends.
        while store.writer_answers().await {
            tokio::task::yield_now().await;
        }
        assert!(store.reserve(&reservation(Usd::mills(1))).await.is_err());
    });
}
