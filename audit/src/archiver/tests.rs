//! An archive in a folder, of a log on a real Postgres.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ledger_protocol::tlog::{BundleIndex, TILE_WIDTH};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::PgPool;

use super::*;
use crate::checkpointer::tests::World;

struct Copied {
    world: World,
    archive: Archive,
    root: PathBuf,
}

impl Copied {
    fn new(pool: PgPool) -> Self {
        let world = World::new(pool);
        let root = world.folder.path().join("archive");
        let archive = Archive::folder(&root);
        Self {
            world,
            archive,
            root,
        }
    }

    async fn advance(&self) -> Result<u64, ArchiverError> {
        let mut conn = self.world.pool.acquire().await.unwrap();
        let (_, advanced) = advance(&mut conn, &self.archive).await?;
        Ok(advanced.head().size)
    }

    async fn grow(&self, size: u64) {
        self.world.append(size, "a").await;
        self.world.sign(size).await;
    }

    /// Requires that the archive is the log of this size, and gives what else is in it.
    async fn left_beside(&self, size: u64) -> Vec<TileIndex> {
        let mut conn = self.world.pool.acquire().await.unwrap();
        let (note, checkpoint) = serve::newest(&mut conn).await.unwrap();
        let head = checkpoint.head();
        assert_eq!(head.size, size);
        let mut files = files(&self.root);
        assert_eq!(files.remove("checkpoint").unwrap(), note.into_bytes());
        for tile in new_tiles(0, size) {
            let hashes = serve::hashes(&mut conn, tile, head).await.unwrap();
            let found = files.remove(&tile.to_string());
            assert!(found == Some(hashes.encode()), "{tile}");
        }
        for bundle in new_bundles(0, size) {
            let entries = serve::entries(&mut conn, None, bundle, head).await.unwrap();
            assert!(
                files.remove(&bundle.to_string()) == Some(entries),
                "{bundle}"
            );
        }
        let tile = |file: &String| match file.replace("entries", "0").parse() {
            Ok(Resource::Tile(tile)) => tile,
            other => panic!("{file}: {other:?}"),
        };
        files.keys().map(tile).collect()
    }

    /// Requires that there is nothing else but partial tiles of those that are not full.
    async fn assert_whole(&self, size: u64) {
        for left in self.left_beside(size).await {
            let full = (u64::from(TILE_WIDTH) << (8 * left.level())) * (left.index() + 1);
            assert!(!left.is_full() && full > size, "{left}");
        }
    }
}

/// Every file below a folder, by its path there.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    // A thread of an archiver that was cut off may give its file the name, or remove one, just now.
    let is_gone = |error: &std::io::Error| assert_eq!(error.kind(), ErrorKind::NotFound);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).inspect_err(is_gone);
        for entry in entries.into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            if path.is_dir() {
                folders.push(path);
            } else if !name.contains(".tmp")
                && let Ok(bytes) = fs::read(&path).inspect_err(is_gone)
            {
                found.insert(name.to_owned(), bytes);
            }
        }
    }
    found
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_an_archive_has_what_is_served_and_no_partial_tile_that_is_full_by_now(pool: PgPool) {
    let copied = Copied::new(pool);
    for size in [1, 200, 255, 256, 700, 701, 66_000] {
        copied.grow(size).await;
        assert_eq!(copied.advance().await.unwrap(), size);
        copied.assert_whole(size).await;
        assert_eq!(copied.advance().await.unwrap(), size, "nothing is new");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_an_archiver_that_dies_anywhere_shows_nothing_that_is_not_there(pool: PgPool) {
    let copied = Copied::new(pool);
    fs::create_dir(&copied.root).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    let mut size = 0;
    for _ in 0..12 {
        size += random.random_range(1..1_500);
        copied.grow(size).await;
        let cut = Duration::from_micros(random.random_range(100..60_000));
        // What a thread has begun to write it ends, or leaves as a file of another name.
        let _ = timeout(cut, copied.advance()).await;
        let kept = archived(&copied.archive).await.unwrap();
        let kept = kept.map_or(0, |kept| kept.head().size);
        let there = files(&copied.root);
        for resource in new_tiles(0, kept).map(Resource::Tile) {
            assert!(there.contains_key(&resource.to_string()), "{resource}");
        }
        for resource in new_bundles(0, kept).map(Resource::Entries) {
            assert!(there.contains_key(&resource.to_string()), "{resource}");
        }
    }
    copied.advance().await.unwrap();
    let left = copied.left_beside(size).await;
    assert!(left.iter().all(|tile| !tile.is_full()), "{left:?}");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_an_archive_never_gets_another_history(pool: PgPool) {
    let copied = Copied::new(pool);
    assert!(matches!(
        copied.advance().await,
        Err(ArchiverError::Log(Unserved::Absent))
    ));
    copied.grow(600).await;
    copied.advance().await.unwrap();
    let before = files(&copied.root);
    let refused = async || {
        let refused = copied.advance().await.unwrap_err();
        assert!(files(&copied.root) == before);
        refused
    };
    // A file that differs from the log is not replaced, and is told of.
    copied.grow(900).await;
    let bundle = BundleIndex::new(2, TILE_WIDTH).unwrap().to_string();
    let damaged = copied.root.join(&bundle);
    fs::write(&damaged, "other").unwrap();
    let error = copied.advance().await.unwrap_err();
    let ArchiverError::Archive(ArchiveError::Differs { file }) = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (file, fs::read(&damaged).unwrap()),
        (&bundle, b"other".to_vec())
    );
    fs::remove_file(&damaged).unwrap();
    for (file, _) in files(&copied.root) {
        if !before.contains_key(&file) {
            fs::remove_file(copied.root.join(file)).unwrap();
        }
    }

    // A database that was put back, and one that was put back and written on.
    let newest = "SELECT note FROM checkpoints WHERE size = 900";
    let note: String = sqlx::query_scalar(newest)
        .fetch_one(&copied.world.pool)
        .await
        .unwrap();
    copied.world.tamper("DELETE FROM checkpoints").await;
    let kept = String::from_utf8(before["checkpoint"].clone()).unwrap();
    let publish = async |size: i64, note: String| {
        sqlx::query("INSERT INTO checkpoints VALUES ($1, $2, now())")
            .bind(size)
            .bind(note)
            .execute(&copied.world.pool)
            .await
            .unwrap();
    };
    let smaller = kept.replacen("\n600\n", "\n300\n", 1);
    publish(300, smaller).await;
    let error = refused().await;
    let (there, here) = (600, 300);
    assert!(
        matches!(error, ArchiverError::Ahead { there: t, here: h } if (t, h) == (there, here)),
        "{error}"
    );
    // The same size with another root; and another log altogether.
    let root = kept.lines().nth(2).unwrap();
    let other = note.lines().nth(2).unwrap();
    publish(600, kept.replacen(root, other, 1)).await;
    let error = refused().await;
    assert!(
        matches!(error, ArchiverError::Forked { size: 600 }),
        "{error}"
    );
    publish(900, note.replacen("log.example/1", "log.example/2", 1)).await;
    let error = refused().await;
    assert!(matches!(error, ArchiverError::Origin { .. }), "{error}");
    copied
        .world
        .tamper("DELETE FROM checkpoints WHERE size = 900")
        .await;
    publish(900, note).await;
    copied.advance().await.unwrap();
    copied.assert_whole(900).await;
    copied
        .world
        .tamper("DELETE FROM events WHERE position = 1")
        .await;
    fs::remove_file(copied.root.join("checkpoint")).unwrap();
    let error = copied.advance().await.unwrap_err();
    assert!(
        matches!(error, ArchiverError::Log(Unserved::Entries(_))),
        "{error}"
    );
}
