use std::path::Path;

use ledger_protocol::daemon::{Confirmed, Ended, Record, Started};
use ledger_protocol::frame::{Command, Update, UpdateState};
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::kind::{Lane, Role};
use uuid::Uuid;

use super::*;
use crate::journal::Change;

fn journal_id(number: u128) -> JournalId {
    JournalId::from_uuid(Uuid::from_u128(number))
}

fn command_id(number: u64) -> CommandId {
    CommandId::from_uuid(Uuid::from_u128(number.into()))
}

fn accepted(number: u64) -> Record {
    Record::Accepted(Box::new(Command {
        batch: None,
        batch_id: None,
        signed: None,
        attested: false,
        command_id: command_id(number),
        destructive: true,
        kind: "gpu.reset".to_owned(),
        kind_version: 1,
        lane: Lane::Provision,
        min_generation: None,
        node_id: NodeId::from_uuid(Uuid::from_u128(7)),
        not_after: None,
        payload: vec![0x80],
        retry_safe: false,
        self_terminating: false,
        seq: number,
        timeout_seconds: 60,
    }))
}

fn started(number: u64) -> Record {
    Record::Started(Started {
        agent_version: "1".to_owned(),
        boot_id: "boot".to_owned(),
        command_id: command_id(number),
        role: Role::Node,
    })
}

fn ended(number: u64) -> Record {
    Record::Ended(Box::new(Ended {
        accepted: true,
        not_after: None,
        seq: number,
        started: true,
        update: Update::bare(command_id(number), UpdateState::Succeeded),
    }))
}

fn confirmed(number: u64) -> Record {
    Record::Confirmed(Confirmed {
        command_id: command_id(number),
        refused: None,
    })
}

fn life(number: u64) -> Vec<Record> {
    vec![
        accepted(number),
        started(number),
        ended(number),
        confirmed(number),
    ]
}

fn write(store: &mut JournalStore, records: &[Record]) {
    let changes: Vec<_> = records.iter().cloned().map(Change::Append).collect();
    store.write(&changes).unwrap();
}

fn open(folder: &Path) -> Opened {
    FileJournal::open(folder, None, journal_id(99)).unwrap()
}

fn lost(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with("journal.lost-"))
        .count()
}

/// The bytes of a journal with three records.
fn three_records() -> (Vec<u8>, Vec<Record>) {
    let folder = tempfile::tempdir().unwrap();
    let records = vec![accepted(1), started(1), ended(1)];
    let mut opened = FileJournal::open(folder.path(), None, journal_id(1)).unwrap();
    write(&mut opened.store, &records);
    (std::fs::read(folder.path().join(NAME)).unwrap(), records)
}

#[test]
fn d5_records_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut opened = FileJournal::open(folder.path(), None, journal_id(1)).unwrap();
    assert_eq!(opened.journal_id, journal_id(1));
    write(&mut opened.store, &life(1));
    write(&mut opened.store, &life(2)[..2]);
    drop(opened);
    let mut opened = open(folder.path());
    assert_eq!(opened.journal_id, journal_id(1));
    assert_eq!(opened.records, [life(1), life(2)[..2].to_vec()].concat());
    write(&mut opened.store, &life(2)[2..]);
    assert_eq!(open(folder.path()).records, [life(1), life(2)].concat());
}

#[test]
fn d5_a_tail_that_is_torn_at_any_byte_is_cut_and_nothing_else() {
    let (bytes, records) = three_records();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    let mut ends = vec![HEADER_BYTES];
    for record in &records {
        let mut record_bytes = Vec::new();
        put(record, &mut record_bytes).unwrap();
        ends.push(ends.last().unwrap() + record_bytes.len());
    }
    for cut in HEADER_BYTES..=bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        let mut opened = open(folder.path());
        assert_eq!(opened.journal_id, journal_id(1), "cut at {cut}");
        assert_eq!(opened.records, records[..whole], "cut at {cut}");
        write(&mut opened.store, &records[whole..]);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "cut at {cut}");
    }
    assert_eq!(lost(folder.path()), 0);
}

#[test]
fn d5_zeros_after_the_last_record_are_a_torn_tail() {
    let (bytes, records) = three_records();
    let folder = tempfile::tempdir().unwrap();
    for zeros in [1, 11, 12, 13, 4096] {
        let longer = [bytes.clone(), vec![0; zeros]].concat();
        std::fs::write(folder.path().join(NAME), longer).unwrap();
        assert_eq!(open(folder.path()).records, records);
        assert_eq!(std::fs::read(folder.path().join(NAME)).unwrap(), bytes);
    }
}

#[test]
fn d8_a_flipped_bit_anywhere_is_a_lost_journal() {
    let (bytes, _) = three_records();
    for at in 0..bytes.len() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged).unwrap();
        let opened = open(folder.path());
        assert_eq!(opened.journal_id, journal_id(99), "byte {at}");
        assert!(opened.records.is_empty());
        let kept = std::fs::read(folder.path().join("journal.lost-1")).unwrap();
        assert_eq!(kept, damaged, "it is kept as it was");
    }
}

#[test]
fn d8_a_journal_without_a_whole_header_is_lost() {
    let (bytes, _) = three_records();
    for cut in 0..HEADER_BYTES {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(NAME), &bytes[..cut]).unwrap();
        assert_eq!(open(folder.path()).journal_id, journal_id(99));
    }
}

#[test]
fn d8_lost_journals_are_kept_within_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..20_u128 {
        std::fs::write(folder.path().join(NAME), number.to_string()).unwrap();
        open(folder.path());
    }
    assert_eq!(lost(folder.path()), LOST_JOURNALS_MAX);
    let newest = std::fs::read(folder.path().join("journal.lost-20")).unwrap();
    assert_eq!(newest, b"19");
}

#[test]
fn d5_a_rewrite_takes_the_place_of_everything_and_keeps_the_id() {
    let folder = tempfile::tempdir().unwrap();
    let mut opened = FileJournal::open(folder.path(), None, journal_id(1)).unwrap();
    let changes = [
        Change::Append(accepted(1)),
        Change::Rewrite(vec![Record::Seen(1)]),
        Change::Append(accepted(2)),
        Change::Append(started(2)),
    ];
    opened.store.write(&changes).unwrap();
    drop(opened);
    let opened = open(folder.path());
    assert_eq!(opened.records, [Record::Seen(1), accepted(2), started(2)]);
    assert_eq!(opened.journal_id, journal_id(1));
}

#[test]
fn d5_what_a_crash_left_of_a_rewrite_is_not_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut opened = FileJournal::open(folder.path(), None, journal_id(1)).unwrap();
    write(&mut opened.store, &life(1));
    std::fs::write(folder.path().join("journal.new"), b"half").unwrap();
    let mut opened = open(folder.path());
    assert_eq!(opened.records, life(1));
    opened.store.write(&[Change::Rewrite(life(1))]).unwrap();
    assert_eq!(open(folder.path()).records, life(1));
}

#[test]
fn d5_after_a_failed_write_only_a_rewrite_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let opened = FileJournal::open(folder.path(), None, journal_id(1)).unwrap();
    let JournalStore::File(mut journal) = opened.store else {
        panic!("not a file")
    };
    journal.append([accepted(1)].iter()).unwrap();
    // A disk that is full.
    journal.file = File::options().write(true).open("/dev/full").unwrap();
    let mut store = JournalStore::File(journal);
    let changes = [Change::Append(started(1)), Change::Append(accepted(2))];
    let unwritten = store.write(&changes).unwrap_err();
    assert_eq!(unwritten.durable, 0);
    assert!(matches!(
        unwritten.error,
        Error::File {
            action: "write",
            ..
        }
    ));
    let unwritten = store.write(&changes).unwrap_err();
    assert!(matches!(unwritten.error, Error::JournalBroken { .. }));
    let mending = [Change::Rewrite(vec![accepted(1)]), changes[0].clone()];
    store.write(&mending).unwrap();
    assert_eq!(open(folder.path()).records, [accepted(1), started(1)]);
}

#[test]
fn d5_a_rewrite_that_fails_leaves_the_old_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut opened = FileJournal::open(folder.path(), None, journal_id(1)).unwrap();
    write(&mut opened.store, &life(1));
    // The new file's name is taken by a folder.
    std::fs::create_dir(folder.path().join("journal.new")).unwrap();
    let changes = [Change::Append(accepted(2)), Change::Rewrite(Vec::new())];
    assert_eq!(opened.store.write(&changes).unwrap_err().durable, 1);
    assert_eq!(
        open(folder.path()).records,
        [life(1), vec![accepted(2)]].concat()
    );
}

#[test]
fn d8_a_journal_whose_records_make_no_sense_is_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    let mut opened = FileJournal::open(folder.path(), None, journal_id(1)).unwrap();
    write(&mut opened.store, &[started(1)]);
    let JournalStore::File(journal) = opened.store else {
        panic!("not a file")
    };
    let opened = journal.lose(journal_id(2)).unwrap();
    assert_eq!(opened.journal_id, journal_id(2));
    assert_eq!(lost(folder.path()), 1);
    assert_eq!(open(folder.path()).journal_id, journal_id(2));
}
