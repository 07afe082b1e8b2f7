"""An environment for Atropos: the model has a shell in a sandbox, and is paid for the file that it leaves there.

Each row of the dataset has a `prompt` ("… Write the answer to answer.txt.") and an `answer`; three commands in three terminals:

    run-api
    python examples/atropos_env.py serve --env.dataset_file prompts.jsonl --env.tokenizer_name MODEL \\
        --openai.model_name MODEL --openai.base_url http://localhost:9001/v1 --openai.server_type vllm
    your trainer, which registers at the API and asks it for batches
"""

from kiseki.errors import ToolError
from kiseki.integrations.atropos import KisekiEnv, Rollout


class AnswerFile(KisekiEnv):
    name = "answer_file"

    async def reward(self, rollout: Rollout) -> float:
        try:
            written = await rollout.sandbox.read_file("answer.txt")
        except ToolError:  # there is none
            return 0.0
        return 1.0 if written.decode(errors="replace").strip() == rollout.row["answer"] else 0.0


if __name__ == "__main__":
    AnswerFile.cli()
