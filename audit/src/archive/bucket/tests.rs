//! A bucket that fails, lies, or sends too much.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::Uri;
use axum::response::IntoResponse as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

/// A bucket whose answers a test makes out of the path and the number of the request.
async fn bucket<F>(answer: F) -> (Bucket, Arc<AtomicU32>, JoinSet<()>)
where
    F: Fn(&str, u32) -> (u16, String) + Clone + Send + Sync + 'static,
{
    // The library panics without a provider, also where it needs none.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let router = Router::new().fallback(async move |uri: Uri| {
        let number = counted.fetch_add(1, Ordering::Relaxed) + 1;
        let (status, body) = answer(uri.path(), number);
        let location = [("location", "/elsewhere")];
        (StatusCode::from_u16(status).unwrap(), location, body).into_response()
    });
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
    let at = BucketAt {
        endpoint: Url::parse(&endpoint).unwrap(),
        region: "eu-central-1".to_owned(),
        name: "b".to_owned(),
        prefix: "p".to_owned(),
        is_host: false,
        credentials: Credentials::new("key", "hunter2"),
    };
    (Bucket::new(at).unwrap(), asked, serving)
}

#[tokio::test]
async fn u1_a_bucket_that_is_busy_is_asked_again_and_not_for_ever() {
    let (busy, asked, _serving) = bucket(|path, number| {
        assert_eq!(path, "/b/p/checkpoint");
        let status = if number < BUCKET_ATTEMPTS { 503 } else { 200 };
        (status, "a note".to_owned())
    })
    .await;
    let file = || "checkpoint".to_owned();
    let read = busy.read(file(), 100).await.unwrap();
    assert_eq!(read.as_deref(), Some(&b"a note"[..]));
    assert_eq!(asked.load(Ordering::Relaxed), BUCKET_ATTEMPTS);

    for status in [500, 429] {
        let (down, asked, _serving) = bucket(move |_, _| (status, String::new())).await;
        let refused = down.read(file(), 100).await.unwrap_err();
        assert!(matches!(refused, ArchiveError::Refused { status: told, .. } if told == status));
        assert_eq!(asked.load(Ordering::Relaxed), BUCKET_ATTEMPTS);
    }
}

#[tokio::test]
async fn u1_a_buckets_answer_is_bounded_and_leads_nowhere_else() {
    for (status, asked_for) in [(302, 1), (403, 1), (400, 1)] {
        let (other, asked, _serving) = bucket(move |_, _| (status, String::new())).await;
        let refused = other.read("a".to_owned(), 100).await.unwrap_err();
        assert!(matches!(refused, ArchiveError::Refused { status: told, .. } if told == status));
        assert_eq!(asked.load(Ordering::Relaxed), asked_for, "{status}");
    }
    let (long, _, _serving) = bucket(|_, _| (200, "x".repeat(101))).await;
    let refused = long.read("a".to_owned(), 100).await.unwrap_err();
    assert!(
        matches!(refused, ArchiveError::TooLong { most: 100, .. }),
        "{refused}"
    );
    assert_eq!(
        long.read("a".to_owned(), 101).await.unwrap().unwrap().len(),
        101
    );
    let (absent, _, _serving) = bucket(|_, _| (404, "no such key".to_owned())).await;
    assert_eq!(absent.read("a".to_owned(), 100).await.unwrap(), None);
    let unwritten = absent
        .replace("a".to_owned(), Vec::new())
        .await
        .unwrap_err();
    assert!(
        matches!(unwritten, ArchiveError::Missing { .. }),
        "{unwritten}"
    );
    // What it lists elsewhere is not removed.
    let (lying, asked, _serving) = bucket(|path, _| {
        let listed = "<?xml version=\"1.0\"?><ListBucketResult \
             xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>false</IsTruncated>\
             <Contents><Key>p/checkpoint</Key></Contents>\
             <Contents><Key>p/tile/0/000.p/7</Key></Contents></ListBucketResult>";
        assert!(["/b/", "/b/p/tile/0/000.p/7"].contains(&path), "{path}");
        (200, listed.to_owned())
    })
    .await;
    lying.remove("tile/0/000.p".to_owned()).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let (mumbling, _, _serving) = bucket(|_, _| (200, "yes".to_owned())).await;
    let unread = mumbling
        .remove("tile/0/000.p".to_owned())
        .await
        .unwrap_err();
    assert!(matches!(unread, ArchiveError::Listing { .. }), "{unread}");
}

#[tokio::test]
async fn p6_no_error_shows_a_signed_url() {
    let (gone, _, serving) = bucket(|_, _| (200, String::new())).await;
    drop(serving);
    let mut error: &dyn std::error::Error = &gone.read("a".to_owned(), 1).await.unwrap_err();
    let mut told = format!("{error:?} {gone:?}");
    while let Some(cause) = error.source() {
        told = format!("{told} {cause}");
        error = cause;
    }
    assert!(
        !told.contains("hunter2") && !told.contains("X-Amz"),
        "{told}"
    );
}
