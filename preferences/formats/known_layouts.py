"""The layouts of well-known data sets, as maps of their columns (see `layouts`)."""

KNOWN_LAYOUTS = {
    "alpaca_eval": "prompt=instruction,response_a=output_1,response_b=output_2,"
    "choice=preference:1|2|0",
    "llmbar": "prompt=input,response_a=output_1,response_b=output_2,choice=label:1|2",
    "nectar": "prompt=prompt,responses=answers.*.answer,ranks=answers.*.rank",
    "oasst": "",
    "pandalm": "prompt=instruction+input,response_a=response1,response_b=response2,"
    "votes=annotator1+annotator2+annotator3:1|2|0",
    "shp": "prompt=history,response_a=human_ref_A,response_b=human_ref_B,choice=labels:1|0",
    "ultrafeedback": "prompt=instruction,responses=completions.*.response,"
    "scores=completions.*.fine-grained_score",
    "ultrafeedback_overall": "prompt=instruction,responses=completions.*.response,"
    "scores=completions.*.overall_score",
    "webgpt": "prompt=question.full_text,response_a=answer_0,response_b=answer_1,"
    "score_a=score_0,score_b=score_1",
}
"""Name -> the layout of a well-known data set; that of Open Assistant's trees is in trees.py."""
