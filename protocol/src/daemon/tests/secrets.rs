use super::service::*;
use super::*;
use crate::dsse::Purpose;
use crate::frame::{Secret, SecretRequest};
use crate::secret::{Exchange, OneTimeKey, Sealed};
use crate::trust::{Signed, WorkerCertificate};

const KEY: OneTimeKey = OneTimeKey::from_bytes([7; 32]);

fn wanted() -> Input {
    wanted_with(KEY)
}

fn wanted_with(key: OneTimeKey) -> Input {
    Input::SecretWanted {
        command_id: command_id(1),
        key,
        secret_ref: "site/bmc".to_owned(),
    }
}

fn refusal(code: &str) -> Secret {
    Secret {
        command_id: command_id(1),
        key: KEY,
        refused: Some(code.to_owned()),
        sealed: None,
        signed: None,
    }
}

fn unsigned(value: &[u8]) -> Secret {
    let sealed = Sealed {
        ciphertext: value.to_vec(),
        encapsulated_key: vec![3; 32],
    };
    Secret {
        refused: None,
        sealed: Some(sealed),
        ..refusal("")
    }
}

fn signed_by_worker(worker: &WorkerCertificate, secret_ref: &str, secret: Secret) -> Secret {
    let exchange = Exchange {
        command_id: command_id(1),
        key: KEY,
        node_id: node_id(),
        secret_ref,
    };
    let statement = exchange.statement(secret.sealed.as_ref().unwrap()).unwrap();
    let signed = Signed::new(&key(WORKER), worker, Purpose::Secret, &statement);
    Secret {
        signed: Some(Box::new(signed)),
        ..secret
    }
}

/// A driver that runs command 1.
fn running(mut driver: Driver, command: frame::Command) -> Driver {
    let done = driver.receive(command);
    assert!(done.contains(&"start 1".to_owned()), "{done:?}");
    driver
}

fn trusting() -> Driver {
    running(Driver::trusting_root_1(), signed(1, "diag.nvml"))
}

#[test]
fn p6_a_question_names_the_command_the_key_and_the_secret() {
    let mut driver = running(Driver::welcomed(), command(1, "diag.nvml"));
    assert_eq!(driver.give(wanted()), ["send SecretRequest"]);
    let asked = driver.performed.last().unwrap();
    let expected = SecretRequest {
        command_id: command_id(1),
        key: KEY,
        node_sig: None,
        secret_ref: "site/bmc".to_owned(),
    };
    assert_eq!(*asked, Effect::Send(expected.into()));
    assert_eq!(driver.receive(unsigned(b"x")), ["secret"]);
    assert_eq!(
        driver.receive(unsigned(b"x")),
        [""; 0],
        "it is answered once"
    );
}

#[test]
fn p6_a_question_is_asked_again_until_it_is_answered_and_in_every_session() {
    let mut driver = running(Driver::welcomed(), command(1, "diag.nvml"));
    driver.give(wanted());
    let asks = |done: Vec<String>| done.iter().filter(|it| *it == "send SecretRequest").count();
    assert_eq!(asks(driver.pass(9)), 4, "every 2 s");
    driver.give(Input::Disconnected);
    assert_eq!(asks(driver.pass(9)), 0);
    assert_eq!(asks(driver.connect()), 1);
    assert_eq!(
        driver.receive(refusal("NOT_NAMED")),
        ["no secret NOT_NAMED"]
    );
    assert_eq!(asks(driver.pass(9)), 0);
}

#[test]
fn p6_only_a_command_that_runs_asks_and_its_end_ends_the_question() {
    let mut driver = Driver::welcomed();
    assert_eq!(driver.give(wanted()), [""; 0], "no such command");
    let mut driver = running(driver, command(1, "diag.nvml"));
    driver.give(wanted());
    driver.finish(1, End::Failed);
    let done = driver.pass(3);
    assert!(!done.contains(&"send SecretRequest".to_owned()), "{done:?}");
    assert_eq!(driver.receive(unsigned(b"x")), [""; 0], "too late");
    assert_eq!(driver.give(wanted()), [""; 0], "it has ended");
}

#[test]
fn p6_questions_are_bounded() {
    let mut driver = running(Driver::welcomed(), command(1, "diag.nvml"));
    for number in 0..64 {
        let key = OneTimeKey::from_bytes([number; 32]);
        assert_eq!(driver.give(wanted_with(key)), ["send SecretRequest"]);
    }
    let more = OneTimeKey::from_bytes([64; 32]);
    assert_eq!(driver.give(wanted_with(more)), [""; 0]);
}

#[test]
fn p6_where_there_is_trust_an_answer_is_the_services_or_none() {
    let doubt = |why: &str| {
        format!(
            "doubt the secret for {} was passed over: it {why}",
            command_id(1)
        )
    };
    let altered = doubt("is not what its worker key has signed");
    let value = || unsigned(b"sealed");
    let good = || signed_by_worker(&worker(1), "site/bmc", value());
    let mut other_value = good();
    other_value.sealed = unsigned(b"forged").sealed;
    let mut other_key = good();
    other_key.sealed.as_mut().unwrap().encapsulated_key[0] ^= 1;
    let other_secret = signed_by_worker(&worker(1), "site/other", value());
    let mut other_purpose = good();
    let of_command = signed(1, "diag.nvml").signed;
    other_purpose.signed = of_command;
    for (answer, said) in [
        (value(), doubt("is not signed")),
        (other_value, altered.clone()),
        (other_key, altered.clone()),
        (other_secret, altered.clone()),
        (other_purpose, altered),
    ] {
        let mut driver = trusting();
        driver.give(wanted());
        assert_eq!(driver.receive(answer), [said]);
        // It goes on asking, and takes the right one.
        assert!(driver.pass(2).contains(&"send SecretRequest".to_owned()));
        assert_eq!(driver.receive(good()), ["secret"]);
    }
}

#[test]
fn p6_an_answer_under_a_root_that_is_not_known_makes_the_daemon_ask_for_trust() {
    let mut driver = trusting();
    driver.give(wanted());
    let answer = signed_by_worker(&worker(2), "site/bmc", unsigned(b"sealed"));
    let done = driver.receive(answer.clone());
    assert_eq!(done[0], "send Status", "{done:?}");
    assert!(done[1].starts_with("doubt the secret for"), "{done:?}");
    let next = sign_bundle(&bundle(2, &[2, 1]), &[1]);
    driver.receive(frame::Trust {
        bundles: vec![next],
    });
    assert_eq!(driver.receive(answer), ["secret"]);
}

#[test]
fn p6_an_answer_for_another_question_is_passed_over() {
    let mut driver = running(Driver::welcomed(), command(1, "diag.nvml"));
    driver.give(wanted());
    let other_command = Secret {
        command_id: command_id(2),
        ..unsigned(b"x")
    };
    let other_key = Secret {
        key: OneTimeKey::from_bytes([8; 32]),
        ..unsigned(b"x")
    };
    let nothing = Secret {
        refused: None,
        ..refusal("")
    };
    for answer in [other_command, other_key, nothing] {
        assert_eq!(driver.receive(answer), [""; 0]);
    }
    assert_eq!(driver.receive(unsigned(b"x")), ["secret"]);
}

#[test]
fn p6_nothing_of_an_exchange_is_journaled() {
    let mut driver = running(Driver::welcomed(), command(1, "diag.nvml"));
    let before = driver.durable.clone();
    driver.give(wanted());
    driver.receive(unsigned(b"x"));
    assert_eq!(driver.durable, before);
}
