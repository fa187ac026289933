"""An environment of atroposlib, unmodified classes, trains the starter: it draws from the run's own policy and posts to the run.

    build/peers-atropos/bin/python tests/peers/atropos_env.py

Each line it prints is one check that held. With the word 'serve' this file is the environment itself, as its users start it."""
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
STARTER = os.path.join(ROOT, "build/starter")
STEPS = 4
LIMIT = 240    # seconds until a wait is given up


def environment():
    from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup

    class Sums(BaseEnv):
        name = "sums"

        @classmethod
        def config_init(cls):
            return BaseEnvConfig(group_size=4, use_wandb=False, max_token_length=200, ensure_scores_are_not_same=False), [APIServerConfig()]

        async def setup(self):
            self.random = random.Random(1)

        async def get_next_item(self):
            return self.random.randrange(10), self.random.randrange(10)

        async def evaluate(self, *args, **kwargs):
            pass

        async def collect_trajectories(self, item):
            group = ScoredDataGroup(tokens=[], masks=[], scores=[], inference_logprobs=[])
            async with self.server.managed_server(tokenizer=self.tokenizer) as server:
                await server.chat_completion(messages=[{"role": "user", "content": f"What is {item[0]}+{item[1]}?"}], n=4, max_tokens=24,
                                             temperature=1.0)
                for node in server.get_state()["nodes"]:
                    group["tokens"].append(node.tokens)
                    group["masks"].append(node.masked_tokens)
                    group["inference_logprobs"].append(node.logprobs)
                    group["scores"].append(sum(t % 2 for t in node.tokens) / len(node.tokens))
            return group, []

    Sums.cli()


def held(what, condition):
    if not condition:
        raise AssertionError(what)
    print("ok", what)


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        port, policy = free_port(), free_port()
        log = open(os.path.join(folder, "train"), "w+")
        run = subprocess.Popen([ROLLCALL, "train", "--batch", "--format", "jsonl", "--runs-dir", folder, "--name", "run", "--model", STARTER,
                                "--environments", json.dumps({"listen": f"127.0.0.1:{port}"}), "--serve", f"127.0.0.1:{policy}", "--max-steps", str(STEPS), "--train-batch-size", "4",
                                "--inference-batch-size", "4", "--num-generations", "4", "--max-staleness", "100", "--max-prompt-tokens", "100",
                                "--max-new-tokens", "100", "--threads", "1"],
                               stdout=log, stderr=subprocess.STDOUT)
        stack.callback(run.kill)
        env_log = open(os.path.join(folder, "env"), "w+")
        env = subprocess.Popen([sys.executable, os.path.abspath(__file__), "serve", "--env.rollout_server_url", f"http://127.0.0.1:{port}",
                                "--env.wandb_name", "sums", "--env.use_wandb", "false", "--env.tokenizer_name", STARTER, "--env.group_size", "4",
                                "--openai.base_url", f"http://127.0.0.1:{policy}/v1", "--openai.server_type", "vllm", "--openai.model_name", "run",
                                "--openai.tokenizer_name", STARTER, "--openai.api_key", "none"],
                               env=dict(os.environ, HF_HUB_OFFLINE="1", WANDB_MODE="disabled", OPENAI_API_KEY="none"), stdout=env_log, stderr=subprocess.STDOUT, cwd=folder)
        stack.callback(env.kill)
        end = time.monotonic() + LIMIT
        while run.poll() is None and env.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        for f in (log, env_log):
            f.seek(0)
        said, env_said = log.read(), env_log.read()
        if run.poll() != 0:
            print(said[-3000:], env_said[-5000:], sep="\n---- environment\n")
        held(f"an environment of atroposlib has trained the starter for {STEPS} steps", run.poll() == 0)
        steps = [json.loads(line) for line in said.splitlines() if '"event":"step"' in line]
        held("each step had its groups", len(steps) == STEPS)


if __name__ == "__main__":
    sys.exit(environment() if sys.argv[1:2] == ["serve"] else main())
