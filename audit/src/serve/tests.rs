//! A log on a real Postgres, asked as any client asks.

use axum::http::{Method, Request};
use http_body_util::BodyExt as _;
use ledger_protocol::merkle::leaf_hash;
use ledger_protocol::tlog::ConsistencyProof;
use tower::ServiceExt as _;

use super::*;
use crate::checkpointer::tests::{World, key};

/// An answer: status, content type, caching, body.
type Answer = (u16, String, String, Vec<u8>);

async fn ask(router: &Router, method: Method, path: &str) -> Answer {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let header = |name| {
        let value = answer.headers().get(name);
        value
            .map_or("", |value: &HeaderValue| value.to_str().unwrap())
            .to_owned()
    };
    let (kind, keep) = (header(header::CONTENT_TYPE), header(header::CACHE_CONTROL));
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, kind, keep, body.to_vec())
}

async fn get_ok(router: &Router, path: &str) -> Vec<u8> {
    let (status, _, _, body) = ask(router, Method::GET, path).await;
    assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
    body
}

async fn status(router: &Router, path: &str) -> u16 {
    ask(router, Method::GET, path).await.0
}

async fn head_of(router: &Router) -> TreeHead {
    let note = Note::parse(&get_ok(router, "/checkpoint").await).unwrap();
    let keys = [key().verifier_key()];
    note.verify(&keys).unwrap();
    *Checkpoint::parse(note.text()).unwrap().head()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_a_log_is_served_as_tlog_tiles_says(pool: PgPool) {
    let world = World::new(pool.clone());
    let router = router(pool.clone(), None);
    assert_eq!(status(&router, "/checkpoint").await, 404);
    assert_eq!(status(&router, "/tile/0/000.p/1").await, 404);
    world.append(1, "a").await;
    world.sign(1).await;
    let small = head_of(&router).await;
    assert_eq!(get_ok(&router, "/tile/0/000.p/1").await, small.root);
    world.append(66_000, "a").await;
    world.sign(66_000).await;
    let large = head_of(&router).await;
    assert_eq!((small.size, large.size), (1, 66_000));

    // All that any proof needs, fetched by name.
    for from in [1, 255, 256, 257, 65_536, 65_999] {
        let mut tiles = Tiles::default();
        for tile in ConsistencyProof::tiles(from, 66_000).unwrap() {
            let bytes = get_ok(&router, &format!("/{tile}")).await;
            tiles.insert(Tile::decode(tile, &bytes).unwrap());
        }
        let proof = ConsistencyProof::read(from, 66_000, &tiles).unwrap();
        if from == 1 {
            proof.verify(&small, &large).unwrap();
        }
    }
    // Entries are the stored bytes.
    for (first, width) in [(0_i64, 256_u16), (200, 256), (257, 208)] {
        let index = BundleIndex::new(first.unsigned_abs(), width).unwrap();
        let bytes = get_ok(&router, &format!("/{index}")).await;
        let bundle = EntryBundle::decode(&bytes, width).unwrap();
        let stored: Vec<Vec<u8>> = sqlx::query_scalar(
            "SELECT body FROM events WHERE position > $1 AND position <= $1 + $2 ORDER BY position",
        )
        .bind(first * 256)
        .bind(i64::from(width))
        .fetch_all(&pool)
        .await
        .unwrap();
        assert_eq!(bundle.entries(), stored);
        let tile = get_ok(&router, &format!("/{}", index.tile())).await;
        let hashes: Vec<u8> = stored.iter().flat_map(|body| leaf_hash(body)).collect();
        assert_eq!(tile, hashes);
    }
    // A narrower tile is the beginning of the wider.
    let whole = get_ok(&router, "/tile/0/257.p/208").await;
    assert_eq!(get_ok(&router, "/tile/0/257.p/3").await, whole[..96]);
    let whole = get_ok(&router, "/tile/1/000").await;
    assert_eq!(
        get_ok(&router, "/tile/1/000.p/255").await,
        whole[..255 * 32]
    );
    assert_eq!(get_ok(&router, "/tile/2/000.p/1").await.len(), 32);

    let immutable = "public, max-age=31536000, immutable";
    for (path, kind, keep) in [
        ("/checkpoint", "text/plain; charset=utf-8", "no-cache"),
        ("/tile/0/000", "application/octet-stream", immutable),
        ("/tile/1/000", "application/octet-stream", immutable),
        ("/tile/entries/000", "application/octet-stream", immutable),
        (
            "/tile/0/257.p/208",
            "application/octet-stream",
            "public, max-age=60",
        ),
        (
            "/tile/entries/257.p/208",
            "application/octet-stream",
            "public, max-age=60",
        ),
    ] {
        let (status, found_kind, found_keep, body) = ask(&router, Method::GET, path).await;
        assert_eq!(
            (status, &*found_kind, &*found_keep),
            (200, kind, keep),
            "{path}"
        );
        assert!(!body.is_empty());
        let (status, found_kind, _, body) = ask(&router, Method::HEAD, path).await;
        assert_eq!((status, &*found_kind, body.len()), (200, kind, 0), "{path}");
        assert_eq!(ask(&router, Method::POST, path).await.0, 405, "{path}");
    }
    for path in [
        "/",
        "/checkpoint/",
        "/tile",
        "/tile/",
        "/tile/0",
        "/tile/0/0",
        "/tile/0/257",
        "/tile/0/257.p/209",
        "/tile/0/258.p/1",
        "/tile/0/257.p/0",
        "/tile/0/257.p/256",
        "/tile/0/257.p/0208",
        "/tile/00/000",
        "/tile/0/x000/000",
        "/tile/1/001",
        "/tile/1/001.p/2",
        "/tile/2/000.p/2",
        "/tile/3/000.p/1",
        "/tile/63/000.p/1",
        "/tile/64/000.p/1",
        "/tile/entries/257",
        "/tile/entries/258.p/1",
        "/tile/entries/x999/x999/x999/x999/x999/x999/999",
        "/tile/data/000",
        "/tile/0/..%2f000",
    ] {
        assert_eq!(status(&router, path).await, 404, "{path}");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_nothing_is_served_that_is_not_what_was_signed(pool: PgPool) {
    let world = World::new(pool.clone());
    let router = router(pool, None);
    world.append(66_000, "a").await;
    world.sign(66_000).await;
    let flip = |level: u8, index: u16, at: u16| {
        format!(
            "UPDATE log_tiles SET hashes = set_byte(hashes, {at}, get_byte(hashes, {at}) # 1)
             WHERE level = {level} AND index = {index}"
        )
    };
    for (level, index, at, path) in [
        (0, 0, 0, "/tile/0/000"),
        (0, 0, 8_191, "/tile/0/000"),
        (0, 100, 4_000, "/tile/entries/100"),
        (0, 257, 207 * 32, "/tile/0/257.p/208"),
        (0, 257, 207 * 32, "/tile/0/257.p/1"),
        (1, 0, 0, "/tile/1/000"),
        (1, 0, 8_191, "/tile/1/000"),
        (1, 1, 0, "/tile/1/001.p/1"),
        (2, 0, 0, "/tile/2/000.p/1"),
    ] {
        world.tamper(&flip(level, index, at)).await;
        assert_eq!(
            status(&router, path).await,
            500,
            "{path} with a change at {at}"
        );
        world.tamper(&flip(level, index, at)).await;
        assert_eq!(status(&router, path).await, 200, "{path}");
    }
    for change in [
        "UPDATE events SET body = 'x' WHERE position = 51457",
        "DELETE FROM events WHERE position = 51457",
        "DELETE FROM log_tiles WHERE level = 0 AND index = 201",
    ] {
        world.tamper(change).await;
        assert_eq!(status(&router, "/tile/entries/201").await, 500, "{change}");
        assert_eq!(status(&router, "/tile/entries/202").await, 200, "{change}");
    }
    // A hash above that was made to fit.
    let fit = "UPDATE log_tiles SET hashes = overlay(hashes PLACING decode(repeat('00', 32), 'hex') FROM 1)
               WHERE level >= 1 AND index = 0";
    world.tamper(fit).await;
    for path in ["/tile/1/000", "/tile/2/000.p/1"] {
        assert_eq!(status(&router, path).await, 500, "{path}");
    }
    world.tamper("UPDATE checkpoints SET note = 'x'").await;
    assert_eq!(status(&router, "/checkpoint").await, 500);
}
