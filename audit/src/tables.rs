//! The tables that are folds of the log, row by row.
//!
//! To add a table: a row here that names all its columns, a map in `fold.rs`, and a line in
//! `replay.rs`. A test compares the columns named here with those that the database has.

use std::hash::Hash;

use ledger_projections::rows::{BatchRow, LeafRow, LiveRow, NodeRow, SettledRow, signed_column};
use ledger_protocol::event::NodeSpecSet;
use ledger_protocol::id::{BatchId, CommandId, NodeId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::limits::PAGE_ROWS;

/// A value of a column, as a difference shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// As text.
    Text(String),
    /// Canonical MessagePack, which is compared field by field.
    Packed(Vec<u8>),
}

impl Value {
    fn text(value: impl std::fmt::Display) -> Self {
        Self::Text(value.to_string())
    }
}

/// A row that the log determines in full.
pub(crate) trait Row: PartialEq + Sized {
    /// The table.
    const TABLE: &'static str;
    /// Its primary key.
    type Key: Eq + Hash;

    fn key(&self) -> Self::Key;
    fn key_text(&self) -> String;
    /// Every column with its value; taken apart without `..`, so that none can be left out.
    fn columns(&self) -> Vec<(&'static str, Value)>;
    /// The rows after `last` in order of the key; all of one snapshot.
    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error>;
}

/// The rows from a key on, without the one that has it: the first page begins with the lowest key
/// there can be and leaves none out.
macro_rules! page_by_id {
    ($conn:expr, $last:expr, $columns:literal, $table:literal, $id:literal, $field:ident) => {
        sqlx::query_as(concat!(
            "SELECT ",
            $columns,
            " FROM ",
            $table,
            " WHERE ",
            $id,
            " >= $1 ORDER BY ",
            $id,
            " OFFSET $2 LIMIT $3"
        ))
        .bind($last.map_or(Uuid::nil(), |last| last.$field))
        .bind(i64::from($last.is_some()))
        .bind(PAGE_ROWS)
        .fetch_all($conn)
        .await
    };
}

impl Row for LiveRow {
    const TABLE: &'static str = "commands_live";
    type Key = Uuid;

    fn key(&self) -> Uuid {
        self.id
    }

    fn key_text(&self) -> String {
        CommandId::from_uuid(self.id).to_string()
    }

    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Self {
            id,
            node,
            seq,
            lane,
            kind,
            state,
            in_flight,
            due_at,
            not_after,
            min_generation,
            held_by,
            snapshot,
        } = self;
        let held_by = held_by.map_or("none".to_owned(), |id| BatchId::from_uuid(id).to_string());
        vec![
            ("id", Value::text(CommandId::from_uuid(*id))),
            ("node", Value::text(NodeId::from_uuid(*node))),
            ("seq", Value::text(seq)),
            ("lane", Value::text(lane)),
            ("kind", Value::text(kind)),
            ("state", Value::text(state)),
            ("in_flight", Value::text(in_flight)),
            ("due_at", Value::text(due_at)),
            ("not_after", Value::text(not_after)),
            ("min_generation", Value::text(min_generation)),
            ("snapshot", Value::Packed(snapshot.clone())),
            ("held_by", Value::Text(held_by)),
        ]
    }

    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error> {
        page_by_id!(
            conn,
            last,
            "id, node, seq, lane, kind, state, in_flight, due_at, not_after, min_generation, \
             held_by, snapshot",
            "commands_live",
            "id",
            id
        )
    }
}

impl Row for SettledRow {
    const TABLE: &'static str = "commands_settled";
    type Key = Uuid;

    fn key(&self) -> Uuid {
        self.id
    }

    fn key_text(&self) -> String {
        CommandId::from_uuid(self.id).to_string()
    }

    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Self {
            id,
            node,
            seq,
            state,
            snapshot,
        } = self;
        vec![
            ("id", Value::text(CommandId::from_uuid(*id))),
            ("node", Value::text(NodeId::from_uuid(*node))),
            ("seq", Value::text(seq)),
            ("state", Value::text(state)),
            ("snapshot", Value::Packed(snapshot.clone())),
        ]
    }

    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error> {
        page_by_id!(
            conn,
            last,
            "id, node, seq, state, snapshot",
            "commands_settled",
            "id",
            id
        )
    }
}

impl Row for NodeRow {
    const TABLE: &'static str = "nodes";
    type Key = Uuid;

    fn key(&self) -> Uuid {
        self.id
    }

    fn key_text(&self) -> String {
        NodeId::from_uuid(self.id).to_string()
    }

    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Self {
            id,
            tenant,
            deleted,
            applied_generation,
            allowed_kinds,
            gateway_lease,
            snapshot,
        } = self;
        let lease = gateway_lease.as_deref().unwrap_or("none");
        let kinds = match allowed_kinds {
            Some(kinds) => format!("{kinds:?}"),
            None => "every kind".to_owned(),
        };
        vec![
            ("id", Value::text(NodeId::from_uuid(*id))),
            (
                "tenant",
                Value::text(ledger_protocol::id::TenantId::from_uuid(*tenant)),
            ),
            ("deleted", Value::text(deleted)),
            ("applied_generation", Value::text(applied_generation)),
            ("allowed_kinds", Value::Text(kinds)),
            ("snapshot", Value::Packed(snapshot.clone())),
            ("gateway_lease", Value::text(lease)),
        ]
    }

    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error> {
        page_by_id!(
            conn,
            last,
            "id, tenant, deleted, applied_generation, allowed_kinds, gateway_lease, snapshot",
            "nodes",
            "id",
            id
        )
    }
}

impl Row for BatchRow {
    const TABLE: &'static str = "batches";
    type Key = Uuid;

    fn key(&self) -> Uuid {
        self.id
    }

    fn key_text(&self) -> String {
        BatchId::from_uuid(self.id).to_string()
    }

    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Self {
            id,
            tenant,
            key,
            approved,
            snapshot,
        } = self;
        vec![
            ("id", Value::text(BatchId::from_uuid(*id))),
            (
                "tenant",
                Value::text(ledger_protocol::id::TenantId::from_uuid(*tenant)),
            ),
            ("key", Value::text(key)),
            ("approved", Value::text(approved)),
            ("snapshot", Value::Packed(snapshot.clone())),
        ]
    }

    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error> {
        page_by_id!(
            conn,
            last,
            "id, tenant, key, approved, snapshot",
            "batches",
            "id",
            id
        )
    }
}

impl Row for LeafRow {
    const TABLE: &'static str = "batch_leaves";
    type Key = (Uuid, i32);

    fn key(&self) -> (Uuid, i32) {
        (self.batch, self.place)
    }

    fn key_text(&self) -> String {
        format!("{} {}", BatchId::from_uuid(self.batch), self.place)
    }

    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Self {
            batch,
            place,
            hash,
            leaf,
            path,
        } = self;
        vec![
            ("batch", Value::text(BatchId::from_uuid(*batch))),
            ("place", Value::text(place)),
            ("hash", Value::Text(hex::encode(hash))),
            ("leaf", Value::Packed(leaf.clone())),
            ("path", Value::Text(hex::encode(path))),
        ]
    }

    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error> {
        sqlx::query_as(
            "SELECT batch, place, hash, leaf, path FROM batch_leaves WHERE (batch, place) >= ($1, $2)
             ORDER BY batch, place OFFSET $3 LIMIT $4",
        )
        .bind(last.map_or(Uuid::nil(), |last| last.batch))
        .bind(last.map_or(0, |last| last.place))
        .bind(i64::from(last.is_some()))
        .bind(PAGE_ROWS)
        .fetch_all(conn)
        .await
    }
}

/// A row of `node_specs`.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct SpecRow {
    node: Uuid,
    generation: i64,
    spec: Vec<u8>,
    signed: Option<Vec<u8>>,
}

impl SpecRow {
    pub(crate) fn of(node: Uuid, set: &NodeSpecSet) -> Result<Self, ledger_projections::Error> {
        let generation = i64::try_from(set.generation).unwrap_or(i64::MAX);
        Ok(Self {
            node,
            generation,
            spec: set.spec.clone(),
            signed: signed_column(set)?,
        })
    }
}

impl Row for SpecRow {
    const TABLE: &'static str = "node_specs";
    type Key = Uuid;

    fn key(&self) -> Uuid {
        self.node
    }

    fn key_text(&self) -> String {
        NodeId::from_uuid(self.node).to_string()
    }

    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Self {
            node,
            generation,
            spec,
            signed,
        } = self;
        let signed = signed.clone().map_or(Value::text("none"), Value::Packed);
        vec![
            ("node", Value::text(NodeId::from_uuid(*node))),
            ("generation", Value::text(generation)),
            ("spec", Value::Packed(spec.clone())),
            ("signed", signed),
        ]
    }

    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error> {
        page_by_id!(
            conn,
            last,
            "node, generation, spec, signed",
            "node_specs",
            "node",
            node
        )
    }
}

/// A row of `command_keys`.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct KeyRow {
    pub(crate) node: Uuid,
    pub(crate) key: String,
    pub(crate) command: Uuid,
}

impl Row for KeyRow {
    const TABLE: &'static str = "command_keys";
    type Key = (Uuid, String);

    fn key(&self) -> (Uuid, String) {
        (self.node, self.key.clone())
    }

    fn key_text(&self) -> String {
        format!("{} {}", NodeId::from_uuid(self.node), self.key)
    }

    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Self { node, key, command } = self;
        vec![
            ("node", Value::text(NodeId::from_uuid(*node))),
            ("key", Value::text(key)),
            ("command", Value::text(CommandId::from_uuid(*command))),
        ]
    }

    async fn page(conn: &mut PgConnection, last: Option<&Self>) -> Result<Vec<Self>, sqlx::Error> {
        sqlx::query_as(
            "SELECT node, key, command FROM command_keys WHERE (node, key) >= ($1, $2)
             ORDER BY node, key OFFSET $3 LIMIT $4",
        )
        .bind(last.map_or(Uuid::nil(), |last| last.node))
        .bind(last.map_or("", |last| last.key.as_str()))
        .bind(i64::from(last.is_some()))
        .bind(PAGE_ROWS)
        .fetch_all(conn)
        .await
    }
}
